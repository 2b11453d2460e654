"""What was found, for people (``terminal``) and for programs (``json_report``), from one ``model``."""
