//! The two shapes that nearly every number of both standards has: a word cut into fields, and a code with names.

/// Declares a newtype over an integer with a getter and a `with_*` setter for each field, written as the
/// specifications write them: `high:low`, or one bit number for a `bool`.
///
/// Reserved bits are kept. Setters are for values of our own: one that does not fit its field is a bug and panics.
macro_rules! bitfields {
    (
        $(#[$outer:meta])*
        pub struct $name:ident($repr:ident) {
            $( $(#[$doc:meta])* $get:ident, $with:ident: $ty:ident = $hi:literal $(: $lo:literal)?; )*
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(
            /// The raw value, in the machine's byte order.
            pub $repr,
        );

        // `From` is not const, so the lossless casts below have to be `as`.
        #[allow(clippy::cast_lossless, clippy::unnecessary_cast)]
        impl $name {
            /// Every bit that belongs to a field; the others are reserved.
            pub const DEFINED: $repr = 0 $( | $crate::fields::mask!($repr, $hi $(, $lo)?) )*;

            /// The bits that are set although they are reserved.
            #[must_use]
            pub const fn reserved_bits(self) -> $repr {
                self.0 & !Self::DEFINED
            }

            $( $crate::fields::field!($repr, $(#[$doc])* $get, $with, $ty, $hi $(, $lo)?); )*
        }
    };
}

macro_rules! mask {
    ($repr:ident, $bit:literal) => {
        ((1 as $repr) << $bit)
    };
    ($repr:ident, $hi:literal, $lo:literal) => {
        (($repr::MAX >> ($repr::BITS - 1 - ($hi - $lo))) << $lo)
    };
}

macro_rules! field {
    ($repr:ident, $(#[$doc:meta])* $get:ident, $with:ident, bool, $bit:literal) => {
        $(#[$doc])*
        #[must_use]
        pub const fn $get(self) -> bool {
            self.0 & ((1 as $repr) << $bit) != 0
        }

        #[doc = concat!("This value with [`Self::", stringify!($get), "`] set or cleared.")]
        #[must_use]
        pub const fn $with(self, value: bool) -> Self {
            let mask = (1 as $repr) << $bit;
            Self(if value { self.0 | mask } else { self.0 & !mask })
        }
    };
    ($repr:ident, $(#[$doc:meta])* $get:ident, $with:ident, $ty:ident, $hi:literal, $lo:literal) => {
        $(#[$doc])*
        #[must_use]
        pub const fn $get(self) -> $ty {
            ((self.0 & $crate::fields::mask!($repr, $hi, $lo)) >> $lo) as $ty
        }

        #[doc = concat!("This value with [`Self::", stringify!($get), "`] replaced. Panics if it does not fit into \
                                                            bits ",
            stringify!($hi), ":", stringify!($lo), ".")]
        #[must_use]
        pub const fn $with(self, value: $ty) -> Self {
            let mask = $crate::fields::mask!($repr, $hi, $lo);
            assert!(value as $repr <= mask >> $lo, "the value does not fit its field");
            Self((self.0 & !mask) | ((value as $repr) << $lo))
        }
    };
}

/// Declares a newtype over an integer whose known values have names and whose unknown values are kept.
///
/// A value named twice does not compile (unreachable pattern).
macro_rules! open_values {
    (
        $(#[$outer:meta])*
        pub struct $name:ident($repr:ident) {
            $( $(#[$doc:meta])* $value:ident = $code:expr; )*
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(
            /// The code as it stands on the wire, in the machine's byte order.
            pub $repr,
        );

        impl $name {
            $( $(#[$doc])* pub const $value: Self = Self($code); )*

            /// Every value that has a name.
            pub const KNOWN: &'static [Self] = &[$(Self::$value),*];

            /// The name of this value, if it has one here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                #[deny(unreachable_patterns)]
                match self {
                    $( Self::$value => Some(stringify!($value)), )*
                    _ => None,
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{}({name})", stringify!($name)),
                    None => write!(f, "{}({:#x})", stringify!($name), self.0),
                }
            }
        }
    };
}

pub(crate) use {bitfields, field, mask, open_values};

// The macros declare public items, which nobody outside of a test module can reach.
#[cfg(test)]
#[allow(unreachable_pub)]
mod tests {
    bitfields! {
        /// A word with every shape of field.
        pub struct Word(u32) {
            /// Lowest bit.
            low, with_low: bool = 0;
            /// In the middle.
            middle, with_middle: u8 = 11:4;
            /// Up to the top.
            high, with_high: u16 = 31:16;
        }
    }

    open_values! {
        /// A code.
        pub struct Code(u8) {
            /// One.
            ONE = 1;
        }
    }

    #[test]
    fn fields_lie_where_they_are_declared_and_keep_their_neighbours() {
        let word = Word(0).with_low(true).with_middle(0xa5).with_high(0x1234);
        assert_eq!(word, Word(0x1234_0a51));
        assert_eq!((word.low(), word.middle(), word.high()), (true, 0xa5, 0x1234));
        assert_eq!(word.with_middle(0).with_low(false), Word(0x1234_0000));
        assert_eq!(Word::DEFINED, 0xffff_0ff1);
        assert_eq!(Word(u32::MAX).reserved_bits(), 0x0000_f00e);
        assert_eq!(Word(u32::MAX).with_middle(0), Word(0xffff_f00f));
    }

    #[test]
    fn unknown_codes_are_kept_and_have_no_name() {
        assert_eq!(format!("{:?} {:?}", Code::ONE, Code(0x42)), "Code(ONE) Code(0x42)");
        assert_eq!(Code(0x42).0, 0x42);
        assert_eq!(Code::KNOWN, [Code(1)]);
    }
}
