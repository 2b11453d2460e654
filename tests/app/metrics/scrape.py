"""What a scrape says."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    """Every sample by its name and labels; the text must parse, and no sample may be there twice."""
    found = [
        ((sample.name, tuple(sorted(sample.labels.items()))), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


def scrape(collector: Collector) -> Samples:
    """The samples of one collector."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return samples(generate_latest(registry).decode())


def labelled(found: Samples, name: str, label: str) -> dict[str, float]:
    """The values of one metric by the value of its only label."""
    return {dict(labels)[label]: value for (sample, labels), value in found.items() if sample == name}
