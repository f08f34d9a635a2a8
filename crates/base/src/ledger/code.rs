//! Values of few kinds, as they stand in the ledger.

use core::any::type_name;
use core::marker::PhantomData;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A kind of value that stands in the ledger by a number. [`coded!`](crate::coded) makes an `enum` without fields one.
pub trait Coded: Copy + PartialEq + 'static {
    /// All values, each in the place of its code.
    const ALL: &'static [Self];
    /// Their names, likewise.
    const NAMES: &'static [&'static str];

    /// The value's place in [`ALL`](Self::ALL).
    fn code(self) -> u8;
}

/// A value by its number. Any byte may be found in the ledger; one that stands for nothing is never taken for another
/// value.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct Code<C> {
    code: u8,
    kind: PhantomData<C>,
}

impl<C: Coded> Code<C> {
    /// The value.
    ///
    /// # Panics
    /// If there is none with this number: the ledger is corrupt, and whoever goes on would do what nobody has asked
    /// for.
    #[inline]
    pub fn get(self) -> C {
        match C::ALL.get(usize::from(self.code)) {
            Some(value) => *value,
            None => panic!("the ledger is corrupt: {} is no {}", self.code, type_name::<C>()),
        }
    }
}

impl<C: Coded> super::Cell<Code<C>> {
    /// The value; see [`Code::get`].
    #[inline]
    pub fn value(&self) -> C {
        self.get().get()
    }
}

impl<C: Coded> From<C> for Code<C> {
    #[inline]
    fn from(value: C) -> Self {
        Self { code: value.code(), kind: PhantomData }
    }
}

impl<C> Clone for Code<C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Code<C> {}

impl<C> PartialEq for Code<C> {
    fn eq(&self, other: &Self) -> bool {
        self.code == other.code
    }
}

impl<C> Eq for Code<C> {}

impl<C: Coded> PartialEq<C> for Code<C> {
    fn eq(&self, other: &C) -> bool {
        self.get() == *other
    }
}

/// As memory that is all zeroes.
impl<C> Default for Code<C> {
    fn default() -> Self {
        Self { code: 0, kind: PhantomData }
    }
}

impl<C> core::fmt::Debug for Code<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.code.fmt(f)
    }
}

/// Implements [`ledger::Coded`](crate::ledger::Coded) for an `enum` without fields, all of whose values are listed in
/// the order in which they are declared.
#[macro_export]
macro_rules! coded {
    ($kind:ident: $($value:ident),+ $(,)?) => {
        impl $crate::ledger::Coded for $kind {
            const ALL: &'static [Self] = &[$(Self::$value),+];
            const NAMES: &'static [&'static str] = &[$(stringify!($value)),+];

            #[inline]
            fn code(self) -> u8 {
                self as u8
            }
        }

        // Every value is listed, else the match is not complete; and in its place.
        const _: () = {
            let all = <$kind as $crate::ledger::Coded>::ALL;
            let mut place = 0;
            while place < all.len() {
                assert!(all[place] as usize == place, "values are listed in the order of their declaration");
                match all[place] {
                    $($kind::$value => {})+
                }
                place += 1;
            }
        };
    };
}
