"""Hours of load with churn: who comes and goes, who watches, and what is concluded."""
