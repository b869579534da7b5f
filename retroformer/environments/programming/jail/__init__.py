"""Code that runs inside the sandbox. A bare interpreter loads it as a package named `jail`.

    host ── control ──> fork server  one per judging process; forks, knows nothing, stays outside
                          └─ job process  a fork per job; creates and removes the jail's control group
                              └─ builder      builds the namespaces, waits until everything has ended
                                  └─ controller   first process of the jail; knows the tests, runs no foreign code
                                      ├─ supervisor  first process of a namespace; starts and kills
                                      │   └─ candidate   the judged code; knows arguments, never expected values
                                      └─ supervisor  the same in another namespace
                                          └─ tester      runs the tests; holds only a channel to the candidate

It imports only the standard library, and its own modules relatively, since the interpreter has no `retroformer`.
"""
