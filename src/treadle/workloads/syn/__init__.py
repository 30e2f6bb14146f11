"""SYN, the synthetic queries of Haren and Lachesis: chains of operators that differ in cost and in what they keep."""
