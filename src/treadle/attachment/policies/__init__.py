"""Small policies around others: what an enforcer asks of priorities beyond what the policy itself decides."""
