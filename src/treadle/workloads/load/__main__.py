"""The load process: options as a line of JSON on standard input; it ends when its standard input ends."""

from treadle.workloads.load.process import main

main()
