# What a resource remembers of its jobs: the last run that succeeded, and the skips in a row.

== A run that succeeded is not repeated within its period
store only: the command line has no options for this yet

A write tree once-per 1h
----
granted
tree: A write t1

A exits 0
----
done
free

B write tree once-per 1h
----
already done
free

C write tree
----
granted
tree: C write t2

== A run that failed or died does not count
store only: the command line has no options for this yet

A write tree once-per 1h
----
granted
tree: A write t1

A exits 1
----
done
free

B write tree once-per 1h
----
granted
tree: B write t2

B is killed
----
done
free

C write tree once-per 1h
----
granted
tree: C write t3

C releases
----
done
free

D write tree once-per 1h
----
granted
tree: D write t4

== The period begins with the run
store only: the command line has no options for this yet

A write tree once-per 2s
----
granted
tree: A write t1

1s pass
----
done
tree: A write t1

A exits 0
----
done
free

B write tree once-per 2s no-wait
----
already done
free

1s pass
----
done
free

C write tree once-per 2s
----
granted
tree: C write t2

== A run is not repeated in the same part of the calendar
store only: the command line has no options for this yet

A write tree once-per 1h since 1h
----
granted
tree: A write t1

A exits 0
----
done
free

B write tree once-per 2h since 1h
----
already done
free

C write tree once-per 2h since 0s no-wait
----
granted
tree: C write t2

C exits 1
----
done
free

D write tree once-per 1h
----
already done
free

E write tree once-per 2h since 0s
----
granted
tree: E write t3

== A waiter asks for the part of the calendar in which its turn comes
store only: the command line has no options for this yet

A write tree once-per 6s since 3s
----
granted
tree: A write t1

B write tree once-per 6s since 3s
----
waiting
tree: A write t1; B write waits 1st

C write tree once-per 6s since 3s
----
waiting
tree: A write t1; B write waits 1st; C write waits 2nd

4s pass
----
done
tree: A write t1; B write waits 1st; C write waits 2nd

A exits 0
----
done
tree: B write t2; C write waits 1st

B exits 0
----
done
free

D write tree
----
granted
tree: D write t3

== A run is already done while somebody holds the resource
store only: the command line has no options for this yet

A write tree once-per 1h
----
granted
tree: A write t1

A exits 0
----
done
free

B write tree
----
granted
tree: B write t2

C write tree once-per 1h
----
already done
tree: B write t2

== Only runs of the same job count for a named job
store only: the command line has no options for this yet

A write tree once-per 1h as a
----
granted
tree: A write t1

A exits 0
----
done
free

B write tree once-per 1h as b
----
granted
tree: B write t2

B exits 0
----
done
free

C write tree once-per 1h as a
----
already done
free

D write tree once-per 1h
----
already done
free

== A run without a period does not count
store only: the command line has no options for this yet

A write tree
----
granted
tree: A write t1

A exits 0
----
done
free

B write tree once-per 1h
----
granted
tree: B write t2

== A waiter whose job is done meanwhile leaves the queue
store only: the command line has no options for this yet

A write tree once-per 1h
----
granted
tree: A write t1

B write tree once-per 1h
----
waiting
tree: A write t1; B write waits 1st

C write tree once-per 1h
----
waiting
tree: A write t1; B write waits 1st; C write waits 2nd

D read tree
----
waiting
tree: A write t1; B write waits 1st; C write waits 2nd; D read waits 3rd

E read tree
----
waiting
tree: A write t1; B write waits 1st; C write waits 2nd; D read waits 3rd; E read waits 4th

A exits 0
----
done
tree: D read t2; E read t3

== A waiter whose turn comes after a failure runs
store only: the command line has no options for this yet

A write tree once-per 1h
----
granted
tree: A write t1

B write tree once-per 1h
----
waiting
tree: A write t1; B write waits 1st

C write tree once-per 1h
----
waiting
tree: A write t1; B write waits 1st; C write waits 2nd

A exits 1
----
done
tree: B write t2; C write waits 1st

B exits 0
----
done
free

== Skips in a row are counted until the next grant
store only: the command line has no options for this yet

A write tree
----
granted
tree: A write t1

B write tree no-wait skip-ok as j
----
busy, skipped 1 in a row
tree: A write t1

C write tree skip-ok as j
----
waiting
tree: A write t1; C write waits 1st

C gives up
----
busy, skipped 2 in a row
tree: A write t1

D write tree no-wait
----
busy
tree: A write t1

E write tree no-wait skip-ok as k
----
busy, skipped 1 in a row
tree: A write t1

A exits 0
----
done
free

F write tree as j
----
granted
tree: F write t2

G write tree no-wait skip-ok as j
----
busy, skipped 1 in a row
tree: F write t2

== A job that is done ends its skips
store only: the command line has no options for this yet

A write tree once-per 1h as j
----
granted
tree: A write t1

B write tree no-wait skip-ok as j
----
busy, skipped 1 in a row
tree: A write t1

A exits 0
----
done
free

C write tree
----
granted
tree: C write t2

D write tree once-per 1h as j
----
already done
tree: C write t2

E write tree no-wait skip-ok as j
----
busy, skipped 1 in a row
tree: C write t2

== A grant from the queue ends the skips
store only: the command line has no options for this yet

A write tree
----
granted
tree: A write t1

B write tree no-wait skip-ok as j
----
busy, skipped 1 in a row
tree: A write t1

C write tree as j
----
waiting
tree: A write t1; C write waits 1st

A releases
----
done
tree: C write t2

D write tree no-wait skip-ok as j
----
busy, skipped 1 in a row
tree: C write t2

== A request that finds enough waiters is busy at once
store only: the command line has no options for this yet

A write tree
----
granted
tree: A write t1

B read tree max-waiting 1
----
waiting
tree: A write t1; B read waits 1st

C write tree max-waiting 1
----
busy
tree: A write t1; B read waits 1st

D write tree max-waiting 2
----
waiting
tree: A write t1; B read waits 1st; D write waits 2nd

E read tree [0,1] + read other max-waiting 2 skip-ok
----
busy, skipped 1 in a row
tree: A write t1; B read waits 1st; D write waits 2nd

F read other max-waiting 0
----
granted
other: F read t1
tree: A write t1; B read waits 1st; D write waits 2nd

G write other max-waiting 0
----
busy
other: F read t1
tree: A write t1; B read waits 1st; D write waits 2nd

B cancels
----
done
other: F read t1
tree: A write t1; D write waits 1st

E2 write other + write tree max-waiting 2
----
waiting
other: F read t1; E2 write waits 1st
tree: A write t1; D write waits 1st; E2 write waits 2nd

== A limit of waiters counts sessions and not their claims
store only: the command line has no options for this yet

A write tree
----
granted
tree: A write t1

B read tree [0,1] + read tree [2,3]
----
waiting
tree: A write t1; B read [0,1] waits 1st; B read [2,3] waits 1st

C write tree [0,1] max-waiting 2
----
waiting
tree: A write t1; B read [0,1] waits 1st; B read [2,3] waits 1st; C write [0,1] waits 2nd

D write tree [0,1] max-waiting 2
----
busy
tree: A write t1; B read [0,1] waits 1st; B read [2,3] waits 1st; C write [0,1] waits 2nd

== Requests whose run is done share an entry until the next success
store only: the command line has no options for this yet

A write tree once-per 1h since 1s
----
granted
tree: A write t1

A exits 0
----
done
free

B write tree once-per 1h
----
already done
free

C write tree once-per 1h
----
already done
free

history of tree
----
A exit 0; C done 2
free

D write tree once-per 1h since 0s no-wait
----
granted
tree: D write t2

D exits 1
----
done
free

E write tree once-per 1h
----
already done
free

history of tree
----
A exit 0; E done 3; D exit 1
free

F write tree once-per 1h since 0s
----
granted
tree: F write t3

F exits 0
----
done
free

G write tree once-per 1h
----
already done
free

history of tree
----
A exit 0; E done 3; D exit 1; F exit 0; G done 1
free

