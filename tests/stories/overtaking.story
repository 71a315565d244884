# A nested request is not held back by an earlier waiter that itself waits for one of the request's
# ancestors, or that is behind such a waiter in the same queue or in that of what the ancestor holds.
# That waiter can't be granted before the ancestor ends, and the ancestor waits for its descendant.

== A nested request overtakes a waiter that also wants the ancestor's resource

A write a
----
granted
a: A write t1

W write a + write b
----
waiting
a: A write t1; W write waits 1st
b: W write waits 1st

N write b below A no-wait
----
granted
a: A write t1; W write waits 1st
b: N write t1; W write waits 1st

N releases
----
done
a: A write t1; W write waits 1st
b: W write waits 1st

A releases
----
done
a: W write t2
b: W write t2

== A queued nested request overtakes when the holder releases

A write a
----
granted
a: A write t1

H write b
----
granted
a: A write t1
b: H write t1

W write a + write b
----
waiting
a: A write t1; W write waits 1st
b: H write t1; W write waits 1st

N write b below A
----
waiting
a: A write t1; W write waits 1st
b: H write t1; W write waits 1st; N write waits 2nd

H releases
----
done
a: A write t1; W write waits 1st
b: N write t2; W write waits 1st

N releases
----
done
a: A write t1; W write waits 1st
b: W write waits 1st

A releases
----
done
a: W write t2
b: W write t3

== A nested request does not overtake a waiter that waits for another session

A write a
----
granted
a: A write t1

H write b
----
granted
a: A write t1
b: H write t1

V write b
----
waiting
a: A write t1
b: H write t1; V write waits 1st

W write a + write b
----
waiting
a: A write t1; W write waits 1st
b: H write t1; V write waits 1st; W write waits 2nd

N write b below A
----
waiting
a: A write t1; W write waits 1st
b: H write t1; V write waits 1st; W write waits 2nd; N write waits 3rd

H releases
----
done
a: A write t1; W write waits 1st
b: V write t2; W write waits 1st; N write waits 2nd

V releases
----
done
a: A write t1; W write waits 1st
b: N write t3; W write waits 1st

N releases
----
done
a: A write t1; W write waits 1st
b: W write waits 1st

== A waiter that goes with the ancestor's hold is not overtaken

A read a
----
granted
a: A read t1

H write b
----
granted
a: A read t1
b: H write t1

W read a + write b
----
waiting
a: A read t1; W read waits 1st
b: H write t1; W write waits 1st

N write b below A
----
waiting
a: A read t1; W read waits 1st
b: H write t1; W write waits 1st; N write waits 2nd

H releases
----
done
a: A read t1; W read t2
b: W write t2; N write waits 1st

W releases
----
done
a: A read t1
b: N write t3

== A waiter for the whole is overtaken on another part of the ancestor's resource

A write tree [0,1]
----
granted
tree: A write [0,1] t1

W write tree
----
waiting
tree: A write [0,1] t1; W write waits 1st

N write tree [5,6] below A
----
granted
tree: A write [0,1] t1; N write [5,6] t2; W write waits 1st

O write tree [5,6] no-wait
----
busy
tree: A write [0,1] t1; N write [5,6] t2; W write waits 1st

A releases
----
done
tree: N write [5,6] t2; W write waits 1st

N releases
----
done
tree: W write t3

== A waiter for the only slot, which the ancestor has, is overtaken

A slot gpu=1
----
granted
gpu: A slot of 1 t1

W slot gpu=1 + write b
----
waiting
b: W write waits 1st
gpu: A slot of 1 t1; W slot of 1 waits 1st

N write b below A
----
granted
b: N write t1; W write waits 1st
gpu: A slot of 1 t1; W slot of 1 waits 1st

N releases
----
done
b: W write waits 1st
gpu: A slot of 1 t1; W slot of 1 waits 1st

== A waiter for one of two slots is not overtaken

A slot gpu=2
----
granted
gpu: A slot of 2 t1

B slot gpu=2
----
granted
gpu: A slot of 2 t1; B slot of 2 t2

W slot gpu=2 + write b
----
waiting
b: W write waits 1st
gpu: A slot of 2 t1; B slot of 2 t2; W slot of 2 waits 1st

N write b below A no-wait
----
busy
b: W write waits 1st
gpu: A slot of 2 t1; B slot of 2 t2; W slot of 2 waits 1st

== A later request of a stranger waits behind the waiter

A write a
----
granted
a: A write t1

W write a + write b
----
waiting
a: A write t1; W write waits 1st
b: W write waits 1st

N read b below A
----
granted
a: A write t1; W write waits 1st
b: N read t1; W write waits 1st

T read b no-wait
----
busy
a: A write t1; W write waits 1st
b: N read t1; W write waits 1st

S read b
----
waiting
a: A write t1; W write waits 1st
b: N read t1; W write waits 1st; S read waits 2nd

N releases
----
done
a: A write t1; W write waits 1st
b: W write waits 1st; S read waits 2nd

A releases
----
done
a: W write t2
b: W write t2; S read waits 1st

W releases
----
done
b: S read t3

== Several descendants overtake in the order of their requests

A write a
----
granted
a: A write t1

H write b
----
granted
a: A write t1
b: H write t1

W write a + write b
----
waiting
a: A write t1; W write waits 1st
b: H write t1; W write waits 1st

N write b below A
----
waiting
a: A write t1; W write waits 1st
b: H write t1; W write waits 1st; N write waits 2nd

O write b below A
----
waiting
a: A write t1; W write waits 1st
b: H write t1; W write waits 1st; N write waits 2nd; O write waits 3rd

H releases
----
done
a: A write t1; W write waits 1st
b: N write t2; W write waits 1st; O write waits 2nd

N releases
----
done
a: A write t1; W write waits 1st
b: O write t3; W write waits 1st

O releases
----
done
a: A write t1; W write waits 1st
b: W write waits 1st

A releases
----
done
a: W write t2
b: W write t4

== An upgrade that comes later is behind a nested request, and does not overtake it

A write e
----
granted
e: A write t1

P prewrite b
----
granted
b: P prewrite t1
e: A write t1

S slot b=1
----
granted
b: P prewrite t1; S slot of 1 t2
e: A write t1

N slot b=1 below A
----
waiting
b: P prewrite t1; S slot of 1 t2; N slot of 1 waits 1st
e: A write t1

U write b + write e below P
----
waiting
b: P prewrite t1; S slot of 1 t2; N slot of 1 waits 1st; U write waits 2nd
e: A write t1; U write waits 1st

S releases
----
done
b: P prewrite t1; N slot of 1 t3; U write waits 1st
e: A write t1; U write waits 1st

N releases
----
done
b: P prewrite t1; U write waits 1st
e: A write t1; U write waits 1st

A releases
----
done
b: P prewrite t1; U write t4
e: U write t2

== An upgrade with several claims waits behind a nested request that came before

A write e
----
granted
e: A write t1

C write c
----
granted
c: C write t1
e: A write t1

P prewrite b
----
granted
b: P prewrite t1
c: C write t1
e: A write t1

S slot b=1
----
granted
b: P prewrite t1; S slot of 1 t2
c: C write t1
e: A write t1

N slot b=1 below A
----
waiting
b: P prewrite t1; S slot of 1 t2; N slot of 1 waits 1st
c: C write t1
e: A write t1

U write b + write c below P
----
waiting
b: P prewrite t1; S slot of 1 t2; N slot of 1 waits 1st; U write waits 2nd
c: C write t1; U write waits 1st
e: A write t1

S releases
----
done
b: P prewrite t1; N slot of 1 t3; U write waits 1st
c: C write t1; U write waits 1st
e: A write t1

C releases
----
done
b: P prewrite t1; N slot of 1 t3; U write waits 1st
c: U write waits 1st
e: A write t1

N releases
----
done
b: P prewrite t1; U write t4
c: U write t2
e: A write t1

U releases
----
done
b: P prewrite t1
e: A write t1

== A waiter behind an overtaken waiter is overtaken, too

A write x
----
granted
x: A write t1

B write x + write y
----
waiting
x: A write t1; B write waits 1st
y: B write waits 1st

C write y
----
waiting
x: A write t1; B write waits 1st
y: B write waits 1st; C write waits 2nd

N write y below A
----
granted
x: A write t1; B write waits 1st
y: N write t1; B write waits 1st; C write waits 2nd

N releases
----
done
x: A write t1; B write waits 1st
y: B write waits 1st; C write waits 2nd

A releases
----
done
x: B write t2
y: B write t2; C write waits 1st

B releases
----
done
y: C write t3

== A nested waiter behind an overtaken waiter is overtaken, too

A write x
----
granted
x: A write t1

D write d
----
granted
d: D write t1
x: A write t1

B write x + write y
----
waiting
d: D write t1
x: A write t1; B write waits 1st
y: B write waits 1st

C read y below D
----
waiting
d: D write t1
x: A write t1; B write waits 1st
y: B write waits 1st; C read waits 2nd

N write y below A no-wait
----
granted
d: D write t1
x: A write t1; B write waits 1st
y: N write t1; B write waits 1st; C read waits 2nd

== A waiter behind an overtaken one on another part is not overtaken

A write x
----
granted
x: A write t1

H write tree [5,6]
----
granted
tree: H write [5,6] t1
x: A write t1

B write x + write tree [0,1]
----
waiting
tree: H write [5,6] t1; B write [0,1] waits 1st
x: A write t1; B write waits 1st

C write tree [5,6]
----
waiting
tree: H write [5,6] t1; B write [0,1] waits 1st; C write [5,6] waits 2nd
x: A write t1; B write waits 1st

N write tree below A
----
waiting
tree: H write [5,6] t1; B write [0,1] waits 1st; C write [5,6] waits 2nd; N write waits 3rd
x: A write t1; B write waits 1st

H releases
----
done
tree: C write [5,6] t2; B write [0,1] waits 1st; N write waits 2nd
x: A write t1; B write waits 1st

C releases
----
done
tree: N write t3; B write [0,1] waits 1st
x: A write t1; B write waits 1st

== Below one hold, a nested reader waits behind an earlier upgrade

A prewrite tree
----
granted
tree: A prewrite t1

B read tree below A
----
granted
tree: A prewrite t1; B read t1

U write tree below A
----
waiting
tree: A prewrite t1; B read t1; U write waits 1st

C read tree below A
----
waiting
tree: A prewrite t1; B read t1; U write waits 1st; C read waits 2nd

B releases
----
done
tree: A prewrite t1; U write t2; C read waits 1st

U releases
----
done
tree: A prewrite t1; C read t1

== A reader below a nested reader overtakes the upgrade that waits for that reader

A prewrite tree
----
granted
tree: A prewrite t1

B read tree below A
----
granted
tree: A prewrite t1; B read t1

U write tree below A
----
waiting
tree: A prewrite t1; B read t1; U write waits 1st

C read tree below B
----
granted
tree: A prewrite t1; B read t1; C read t1; U write waits 1st

C releases
----
done
tree: A prewrite t1; B read t1; U write waits 1st

B releases
----
done
tree: A prewrite t1; U write t2

== An upgrade waits for an earlier reader that does not wait for it

A prewrite tree
----
granted
tree: A prewrite t1

H write other
----
granted
other: H write t1
tree: A prewrite t1

R read tree + read other
----
waiting
other: H write t1; R read waits 1st
tree: A prewrite t1; R read waits 1st

U write tree below A
----
waiting
other: H write t1; R read waits 1st
tree: A prewrite t1; R read waits 1st; U write waits 2nd

H releases
----
done
other: R read t2
tree: A prewrite t1; R read t2; U write waits 1st

R releases
----
done
tree: A prewrite t1; U write t3

== A nested waiter that itself overtakes the waiter ahead is not overtaken

A write x
----
granted
x: A write t1

D write d
----
granted
d: D write t1
x: A write t1

H write y
----
granted
d: D write t1
x: A write t1
y: H write t1

B write d + write x + write y
----
waiting
d: D write t1; B write waits 1st
x: A write t1; B write waits 1st
y: H write t1; B write waits 1st

C read y below D
----
waiting
d: D write t1; B write waits 1st
x: A write t1; B write waits 1st
y: H write t1; B write waits 1st; C read waits 2nd

N write y below A
----
waiting
d: D write t1; B write waits 1st
x: A write t1; B write waits 1st
y: H write t1; B write waits 1st; C read waits 2nd; N write waits 3rd

H releases
----
done
d: D write t1; B write waits 1st
x: A write t1; B write waits 1st
y: C read t2; B write waits 1st; N write waits 2nd

C releases
----
done
d: D write t1; B write waits 1st
x: A write t1; B write waits 1st
y: N write t3; B write waits 1st

== A job that waits behind a maintenance is overtaken by a job that the maintenance waits for

A read fleet
----
granted
fleet: A read t1

M write fleet
----
waiting
fleet: A read t1; M write waits 1st

B read fleet + write report
----
waiting
fleet: A read t1; M write waits 1st; B read waits 2nd
report: B write waits 1st

C write report
----
waiting
fleet: A read t1; M write waits 1st; B read waits 2nd
report: B write waits 1st; C write waits 2nd

N write report below A
----
granted
fleet: A read t1; M write waits 1st; B read waits 2nd
report: N write t1; B write waits 1st; C write waits 2nd

N releases
----
done
fleet: A read t1; M write waits 1st; B read waits 2nd
report: B write waits 1st; C write waits 2nd

A releases
----
done
fleet: M write t2; B read waits 1st
report: B write waits 1st; C write waits 2nd

M releases
----
done
fleet: B read t3
report: B write t2; C write waits 1st

B releases
----
done
report: C write t3

== A waiter for more slots than the ancestor leaves is overtaken

A slot gpu=3:2
----
granted
gpu: A 2 slots of 3 t1

B slot gpu=3:2 + write d
----
waiting
d: B write waits 1st
gpu: A 2 slots of 3 t1; B 2 slots of 3 waits 1st

N write d below A
----
granted
d: N write t1; B write waits 1st
gpu: A 2 slots of 3 t1; B 2 slots of 3 waits 1st

N releases
----
done
d: B write waits 1st
gpu: A 2 slots of 3 t1; B 2 slots of 3 waits 1st

A releases
----
done
d: B write t2
gpu: B 2 slots of 3 t2

== A waiter for as many slots as the ancestor leaves is not overtaken

A slot gpu=4:2
----
granted
gpu: A 2 slots of 4 t1

H slot gpu=4
----
granted
gpu: A 2 slots of 4 t1; H slot of 4 t2

B slot gpu=4:2 + write d
----
waiting
d: B write waits 1st
gpu: A 2 slots of 4 t1; H slot of 4 t2; B 2 slots of 4 waits 1st

N write d below A
----
waiting
d: B write waits 1st; N write waits 2nd
gpu: A 2 slots of 4 t1; H slot of 4 t2; B 2 slots of 4 waits 1st

H releases
----
done
d: B write t1; N write waits 1st
gpu: A 2 slots of 4 t1; B 2 slots of 4 t3

B releases
----
done
d: N write t2
gpu: A 2 slots of 4 t1

== Whoever waits behind a waiter that takes too many slots is overtaken with it

A write x
----
granted
x: A write t1

B slot gpu=3:2 + write x
----
waiting
gpu: B 2 slots of 3 waits 1st
x: A write t1; B write waits 1st

C slot gpu=3:2
----
waiting
gpu: B 2 slots of 3 waits 1st; C 2 slots of 3 waits 2nd
x: A write t1; B write waits 1st

N slot gpu=3:3 below A
----
granted
gpu: N 3 slots of 3 t1; B 2 slots of 3 waits 1st; C 2 slots of 3 waits 2nd
x: A write t1; B write waits 1st

N releases
----
done
gpu: B 2 slots of 3 waits 1st; C 2 slots of 3 waits 2nd
x: A write t1; B write waits 1st

== Whoever waits for a kept hold is overtaken as well
store only: a kept hold takes several operations

A write x for 2s
----
granted
x: A write kept t1

B write x + write d
----
waiting
d: B write waits 1st
x: A write kept t1; B write waits 1st

N write d below A
----
granted
d: N write t1; B write waits 1st
x: A write kept t1; B write waits 1st

O write x below A
----
granted
d: N write t1; B write waits 1st
x: A write kept t1; O write t1; B write waits 1st

2s pass
----
done
d: N write t1; B write waits 1st
x: O write t1; B write waits 1st

N releases
----
done
d: B write waits 1st
x: O write t1; B write waits 1st

O releases
----
done
d: B write t2
x: B write t2

== A hold that its command has left behind is overtaken for until it ends
store only: a kept hold takes several operations

A write x at-least 2s
----
granted
x: A write t1

B write x + write d
----
waiting
d: B write waits 1st
x: A write t1; B write waits 1st

A exits 0
----
done
d: B write waits 1st
x: A write kept t1; B write waits 1st

O write d below A
----
granted
d: O write t1; B write waits 1st
x: A write kept t1; B write waits 1st

O releases
----
done
d: B write waits 1st
x: A write kept t1; B write waits 1st

2s pass
----
done
d: B write t2
x: B write t2
