//! Defines the errors of the servers of a store by a table, of which each row is one error.

/// Makes `ErrorKind`, an error of a server, and `Failure`, the same with the name of the server.
///
/// A row has the name of an error, data that its words quote, the replies of servers that mean it,
/// its class for a store with one server, what happened, and what to do. The server is the subject
/// of what happened. Behind `with` stands the [`Spelling`](crate::network::Spelling) of the URLs.
#[macro_export]
macro_rules! server_errors {
    ($vis:vis with $spelling:ident; $(
        $(#[$doc:meta])*
        $name:ident $(($($data:ident: $type:ty),+))? [$($reply:literal),*] $class:ident: $what:literal, $remedy:literal;
    )+) => {
        /// The kind of a failure, from which its message and its class follow.
        #[derive(Clone, Debug, PartialEq)]
        $vis enum ErrorKind {
            /// The server can't be reached.
            Network($crate::network::NetworkError),
            $(#[doc = concat!("The server ", $what, ".")]
            ///
            $(#[$doc])*
            $name $(($($type),+))?,)+
        }

        /// Why a server can't be used.
        #[derive(Clone, Debug, PartialEq)]
        $vis struct Failure {
            /// The server as messages name it.
            server: String,
            kind: ErrorKind,
        }

        impl ErrorKind {
            /// The first row with a reply that `fits`. Its data is `text`.
            fn of_reply(fits: impl Fn(&str) -> bool, text: &str) -> Option<Self> {
                $(
                    let replies: &[&str] = &[$($reply),*];
                    if replies.iter().any(|reply| fits(reply)) {
                        return Some(Self::$name $(($(<$type>::from(text)),+))?);
                    }
                )+
                None
            }

            /// What the failure says about the next attempt. `has_others` says whether the URL
            /// leads to other servers, of which one may be right.
            $vis fn class_among(&self, has_others: bool) -> $crate::lease::FailureClass {
                use $crate::lease::FailureClass::*;
                let class = match self {
                    Self::Network(error) => error.class(),
                    $(Self::$name { .. } => $class,)+
                };
                if has_others && class != Permanent { Transient } else { class }
            }

            /// The message after the name of the server: what happened, and what to do.
            fn words(&self) -> rlock_words::Explained {
                match self {
                    Self::Network(error) => error.words(&$spelling),
                    $(Self::$name $(($($data),+))? => {
                        rlock_words::Explained::with_semicolon(format!($what), format!($remedy))
                    })+
                }
            }

            /// The failure of this kind of a server.
            $vis fn of(self, server: &str) -> Failure {
                Failure { server: server.to_owned(), kind: self }
            }
        }

        impl From<$crate::network::NetworkError> for ErrorKind {
            fn from(error: $crate::network::NetworkError) -> Self {
                Self::Network(error)
            }
        }

        impl Failure {
            /// The failure to report of two consecutive ones: a timeout says less than the failure
            /// before it.
            $vis fn prefer(self, earlier: Option<Self>) -> Self {
                match (&self.kind, earlier) {
                    (ErrorKind::Network($crate::network::NetworkError::TimedOut(_)), Some(earlier)) => earlier,
                    _ => self,
                }
            }

            /// The words about it.
            $vis fn words(&self) -> rlock_words::Explained {
                self.kind.words().behind(format_args!("'{}' ", self.server))
            }

            /// What has happened.
            $vis fn kind(&self) -> &ErrorKind {
                &self.kind
            }
        }

        impl std::fmt::Display for Failure {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.words().fmt(f)
            }
        }

        impl From<Failure> for $crate::Error {
            fn from(failure: Failure) -> Self {
                Self::Unavailable(failure.words())
            }
        }
    };
}
