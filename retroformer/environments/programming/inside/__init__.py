"""What runs on the other side of the wall. It is loaded by a bare interpreter, as a package of the name `inside`.

    host ── control ──> nursery      one for each process that judges; forks, knows nothing, stays outside
                          └─ keeper      a fork for each job; makes and removes the jail's control group
                              └─ porter      builds the namespaces, waits until all is gone
                                  └─ examiner    first process of the jail; knows the tests, runs nobody's code
                                      ├─ warden      first process of a namespace; starts and kills
                                      │   └─ candidate   the judged code; knows arguments, never what is expected
                                      └─ warden      the same in another namespace
                                          └─ tester      runs the tests; holds a channel to the candidate and no more

It imports the standard library alone, and its own modules relatively, since the interpreter has no `retroformer`.
"""
