"""`treadle bench pipelines`, `hops` and `channels`: schedulers, policies and channels of pipelines."""
