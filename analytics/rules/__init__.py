"""The rules of retry storms, as a chain of named SQL steps over the reduced roll-up (:mod:`analytics.rules.engine`)."""
