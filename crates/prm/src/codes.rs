//! Codes: enums for fields whose numbers have meanings.

/// Declares an enum of codes. The text of each is its documentation, and what [`Display`](std::fmt::Display) shows.
macro_rules! codes {
    ($(
        $(#[$meta:meta])*
        pub enum $name:ident {$($variant:ident = $code:literal $text:literal,)*}
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $(
                #[doc = concat!($text, " (", stringify!($code), ").")]
                $variant = $code,
            )*
        }

        impl $name {
            /// All values, by ascending code.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The value that `code` encodes, if there is one.
            #[inline]
            #[must_use]
            pub const fn from_code(code: u32) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The number that encodes the value.
            #[inline]
            #[must_use]
            pub const fn code(self) -> u32 {
                self as u32
            }

            /// The meaning of the value, in words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.text())
            }
        }

        const _: () = {
            let mut i = 1;
            while i < $name::ALL.len() {
                assert!($name::ALL[i - 1].code() < $name::ALL[i].code(), "codes stand in ascending order");
                i += 1;
            }
        };
    )*};
}

pub(crate) use codes;
