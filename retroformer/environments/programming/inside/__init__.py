"""What runs on the other side of the wall. It is loaded by a bare interpreter, as a package of the name `inside`.

    host ── control ──> nursery      one for each process that judges; forks, knows nothing, stays outside
                          └─ porter      a fork for each job; builds the namespaces, waits until all is gone
                              └─ examiner    first process of the jail; knows the tests, never the candidate's code
                                  └─ warden      first process of an inner process namespace; starts and kills
                                      └─ candidate   the code that is judged; knows arguments, never what is expected

It imports the standard library alone, and its own modules relatively, since the interpreter has no `retroformer`.
"""
