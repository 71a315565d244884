# A kept hold has no process: the store ends it at its instant. Nothing renews it, and cleanup leaves
# it. A release or a break ends it sooner.

== A kept hold ends at its instant
store only: the command line has no options for this yet

A write tree for 2s
----
granted
tree: A write kept t1

B write tree
----
waiting
tree: A write kept t1; B write waits 1st

2s pass
----
done
tree: B write t2

history of tree
----
A kept
tree: B write t2

== A kept hold without an end stays until its release
store only: the command line has no options for this yet

A write tree for ever
----
granted
tree: A write kept t1

B write tree
----
waiting
tree: A write kept t1; B write waits 1st

A is extended by 1s
----
done
tree: A write kept t1; B write waits 1st

2s pass
----
done
tree: A write kept t1; B write waits 1st

A releases
----
done
tree: B write t2

== A kept hold is extended without an end
store only: the command line has no options for this yet

A write tree for 1s
----
granted
tree: A write kept t1

A is extended by ever
----
done
tree: A write kept t1

2s pass
----
done
tree: A write kept t1

break tree
----
broke A
free

== A kept hold outlives its process
store only: the command line has no options for this yet

A write tree for 2s
----
granted
tree: A write kept t1

A is killed
----
done
tree: A write kept t1

B read tree
----
waiting
tree: A write kept t1; B read waits 1st

2s pass
----
done
tree: B read t2

== A release ends a kept hold
store only: the command line has no options for this yet

A write tree for 1h
----
granted
tree: A write kept t1

B write tree
----
waiting
tree: A write kept t1; B write waits 1st

A exits 0
----
done
tree: B write t2

B releases
----
done
free

history of tree
----
A exit 0
free

== A break takes a kept hold
store only: the command line has no options for this yet

A write tree for 1h
----
granted
tree: A write kept t1

B write tree
----
waiting
tree: A write kept t1; B write waits 1st

break tree
----
broke A
tree: B write t2

history of tree
----
A broken
tree: B write t2

== A kept hold lasts longer once it is extended
store only: the command line has no options for this yet

A write tree for 2s
----
granted
tree: A write kept t1

B write tree
----
waiting
tree: A write kept t1; B write waits 1st

A is extended by 1h
----
done
tree: A write kept t1; B write waits 1st

2s pass
----
done
tree: A write kept t1; B write waits 1st

A releases
----
done
tree: B write t2

== A kept hold never ends sooner
store only: the command line has no options for this yet

A write tree for 1h
----
granted
tree: A write kept t1

A is extended by 1s
----
done
tree: A write kept t1

1s pass
----
done
tree: A write kept t1

== A hold with a process is not extended
store only: the command line has no options for this yet

A write tree
----
granted
tree: A write t1

A is extended by 1h
----
refused: only what 'rlock acquire --for' has locked can be extended: a lock with a process lasts as long as it
tree: A write t1

== A waiter that is granted a kept hold
store only: the command line has no options for this yet

A write tree
----
granted
tree: A write t1

B write tree for 1h
----
waiting
tree: A write t1; B write waits 1st

A releases
----
done
tree: B write kept t2

B is killed
----
done
tree: B write kept t2

C read tree no-wait
----
busy
tree: B write kept t2

== A request below a kept hold is covered by it
store only: the command line has no options for this yet

A write tree for 1h
----
granted
tree: A write kept t1

B write tree below A
----
granted
tree: A write kept t1; B write t1

B exits 0
----
done
tree: A write kept t1

A releases
----
done
free

== A minimum hold outlives its command
store only: the command line has no options for this yet

A write tree at-least 2s
----
granted
tree: A write t1

B write tree
----
waiting
tree: A write t1; B write waits 1st

A exits 1
----
done
tree: A write kept t1; B write waits 1st

history of tree
----
A exit 1
tree: A write kept t1; B write waits 1st

2s pass
----
done
tree: B write t2

history of tree
----
A exit 1
tree: B write t2

== A hold that has lasted for its minimum ends with its command
store only: the command line has no options for this yet

A write tree at-least 1s
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

== A command that never ran leaves no minimum hold
store only: the command line has no options for this yet

A write tree at-least 1h
----
granted
tree: A write t1

A releases
----
done
free

== A holder that dies leaves no minimum hold
store only: the command line has no options for this yet

A write tree at-least 1h
----
granted
tree: A write t1

A is killed
----
done
free

B write tree
----
granted
tree: B write t2
