"""Code that runs inside the sandbox. A bare interpreter loads it as a package named `inside`.

    host ── control ──> nursery      one per judging process; forks, knows nothing, stays outside
                          └─ keeper      a fork per job; creates and removes the jail's control group
                              └─ porter      builds the namespaces, waits until everything has ended
                                  └─ examiner    first process of the jail; knows the tests, runs no foreign code
                                      ├─ warden      first process of a namespace; starts and kills
                                      │   └─ candidate   the judged code; knows arguments, never expected values
                                      └─ warden      the same in another namespace
                                          └─ tester      runs the tests; holds only a channel to the candidate

It imports only the standard library, and its own modules relatively, since the interpreter has no `retroformer`.
"""
