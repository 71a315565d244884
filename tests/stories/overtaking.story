# A nested request is not held back by an earlier waiter that itself waits for one of the request's
# ancestors. That waiter can't be granted before the ancestor ends, and the ancestor waits for its
# descendant.

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

== An upgrade that comes later is ahead, and is overtaken if it also wants the ancestor's resource

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
b: P prewrite t1; S slot of 1 t2; U write waits 1st; N slot of 1 waits 2nd
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

== An upgrade with several claims that waits for another session is not overtaken

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
b: P prewrite t1; S slot of 1 t2; U write waits 1st; N slot of 1 waits 2nd
c: C write t1; U write waits 1st
e: A write t1

S releases
----
done
b: P prewrite t1; U write waits 1st; N slot of 1 waits 2nd
c: C write t1; U write waits 1st
e: A write t1

C releases
----
done
b: P prewrite t1; U write t3; N slot of 1 waits 1st
c: U write t2
e: A write t1

U releases
----
done
b: P prewrite t1; N slot of 1 t4
e: A write t1

