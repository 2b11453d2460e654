"""Tests of the report's forms."""
