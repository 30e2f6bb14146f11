"""Small policies that wrap others: what an enforcer needs of priorities beyond what the policy itself decides."""
