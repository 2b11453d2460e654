"""The hash by which Spark chooses one of 64 bits for a connection or a node (Murmur3, 32 bits, seed 42)."""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_SEED = 42


def bit_of_number(value: int) -> int:
    """The bit of a 64-bit number: its low half is mixed in first, then its high half."""
    halves = (value & _MASK, value >> 32 & _MASK)
    return _signed(_finish(_mix(_mix(_SEED, halves[0]), halves[1]), 8)) % 64


def bit_of_text(text: str) -> int:
    """The bit of a text: four bytes at a time, and then each of what is left as a signed number."""
    raw = text.encode("utf-8", "replace")
    whole = len(raw) // 4 * 4
    state = _SEED
    for place in range(0, whole, 4):
        state = _mix(state, int.from_bytes(raw[place : place + 4], "little"))
    for byte in raw[whole:]:
        state = _mix(state, (byte - 256 if byte > 127 else byte) & _MASK)
    return _signed(_finish(state, len(raw))) % 64


def _mix(state: int, word: int) -> int:
    word = _turn(word * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    return (_turn(state ^ word, 13) * 5 + 0xE6546B64) & _MASK


def _finish(state: int, length: int) -> int:
    state ^= length
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def _turn(word: int, by: int) -> int:
    return (word << by | word >> 32 - by) & _MASK


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
