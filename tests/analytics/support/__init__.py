"""Made logs with known storms, and a Spark session for all tests."""
