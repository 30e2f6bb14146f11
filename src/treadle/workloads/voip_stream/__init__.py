"""VoipStream: finds telemarketers in a stream of phone calls (DSPBench, as in the evaluation of Lachesis, section 6).

`pipeline` has the graph and `records` its input; `parameters` the numbers of the paper's implementation. `reference` is
the whole graph in plain Python. `operators` has the operators on Spark, of which those with state are in `steps`;
`merging` lets several of these share one query.
"""
