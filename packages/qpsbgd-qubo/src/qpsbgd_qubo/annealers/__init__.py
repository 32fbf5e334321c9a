"""Solvers on a quantum annealer, a simulated one, a hybrid service, or a recording of one.

chips, tiles                  a chip's graph, disjoint cliques on it
packing, reads                columns on the cliques to submissions, and answers to solutions
submissions, recordings       the connection, and the file that remembers what went over it
budget, ledger                limits, and what was spent
sqlite_file                   the files of recordings and ledgers
service_solver                options and life of every solver here; chip_solver and leap_hybrid build on it
dwave, virtual_qpu, replay    the solvers that `make_solver` knows
"""
