# The tokens of a resource rise strictly while the resource has state, and still rise after that
# state was dropped. A nested claim that an ancestor's hold includes has the ancestor's token.

== Every grant has a higher token, also within a batch of readers

A write tree
----
granted
tree: A write t1

B read tree
----
waiting
tree: A write t1; B read waits 1st

C read tree
----
waiting
tree: A write t1; B read waits 1st; C read waits 2nd

A releases
----
done
tree: B read t2; C read t3

D read tree
----
granted
tree: B read t2; C read t3; D read t4

== Tokens rise across a time without holders

A write tree
----
granted
tree: A write t1

A releases
----
done
free

B write tree
----
granted
tree: B write t2

B is killed
----
done
free

C slot tree=1
----
granted
tree: C slot of 1 t3

break tree
----
broke C
free

D read tree [0,1]
----
granted
tree: D read [0,1] t4

== The spans of a resource share one sequence of tokens

A write tree [0,1]
----
granted
tree: A write [0,1] t1

B write tree [5,6]
----
granted
tree: A write [0,1] t1; B write [5,6] t2

A releases
----
done
tree: B write [5,6] t2

C write tree [0,1]
----
granted
tree: B write [5,6] t2; C write [0,1] t3

== Each resource has a sequence of its own

A write x
----
granted
x: A write t1

A releases
----
done
free

B write x + write y
----
granted
x: B write t2
y: B write t1

== Included claims have the ancestor's token, and an upgrade has a new one

A prewrite tree
----
granted
tree: A prewrite t1

B read tree
----
granted
tree: A prewrite t1; B read t2

C read tree below A
----
granted
tree: A prewrite t1; C read t1; B read t2

B releases
----
done
tree: A prewrite t1; C read t1

C releases
----
done
tree: A prewrite t1

D write tree below A
----
granted
tree: A prewrite t1; D write t3

E read tree below D
----
granted
tree: A prewrite t1; D write t3; E read t3

E releases
----
done
tree: A prewrite t1; D write t3

D releases
----
done
tree: A prewrite t1

F read tree
----
granted
tree: A prewrite t1; F read t4

== A shrink and a downgrade keep the token

A write tree [0,10]
----
granted
tree: A write [0,10] t1

B read tree [8,9]
----
waiting
tree: A write [0,10] t1; B read [8,9] waits 1st

A shrinks tree to [0,5]
----
done
tree: A write [0,5] t1; B read [8,9] t2

A downgrades tree to read
----
done
tree: A read [0,5] t1; B read [8,9] t2
