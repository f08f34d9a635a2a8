use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64};

pub use ::layout::Layout;

use super::{Bytes, Cell, Code, Coded, Counter};

/// A type that lies in memory which another program may have made: a number stands for how it does.
///
/// `#[derive(Layout)]` makes it from the names, places and types of all fields, down to the words; the names of a
/// [`Coded`] value's kinds count, too, for they are what its numbers mean.
pub trait Layout {
    /// Its layout.
    const LAYOUT: LayoutHash;
}

/// What stands for a layout while it is put together: FNV-1a of 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayoutHash(pub u64);

impl LayoutHash {
    const NONE: Self = Self(0xcbf2_9ce4_8422_2325);

    /// The start of a type's: its name and size.
    pub const fn of<T>(name: &str) -> Self {
        Self::NONE.name(name).number(size_of::<T>() as u64).number(align_of::<T>() as u64)
    }

    /// Then a field of type `T`.
    pub const fn field<T: Layout>(self, name: &str, offset: usize) -> Self {
        self.name(name).number(offset as u64).number(T::LAYOUT.0)
    }

    /// Then a name.
    pub const fn name(mut self, name: &str) -> Self {
        let bytes = name.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            self = self.byte(bytes[at]);
            at += 1;
        }
        self.number(bytes.len() as u64)
    }

    /// Then a number.
    pub const fn number(mut self, number: u64) -> Self {
        let bytes = number.to_le_bytes();
        let mut at = 0;
        while at < bytes.len() {
            self = self.byte(bytes[at]);
            at += 1;
        }
        self
    }

    const fn byte(self, byte: u8) -> Self {
        Self((self.0 ^ byte as u64).wrapping_mul(0x100_0000_01b3))
    }
}

macro_rules! plain {
    ($($kind:ty),+) => {$(
        impl Layout for $kind {
            const LAYOUT: LayoutHash = LayoutHash::of::<Self>(stringify!($kind));
        }
    )+};
}

plain!(u8, u16, u32, u64, u128, usize, i32, bool, String, core::time::Duration, AtomicU32, AtomicU64);

macro_rules! within {
    ($($name:literal: $kind:ident),+) => {$(
        impl<T: Layout> Layout for $kind<T> {
            const LAYOUT: LayoutHash = LayoutHash::of::<Self>($name).field::<T>("0", 0);
        }
    )+};
}

within!("Cell": Cell, "Option": Option, "Vec": Vec, "UnsafeCell": UnsafeCell, "Box": Box);

impl<T: Layout> Layout for Box<[T]> {
    const LAYOUT: LayoutHash = LayoutHash::of::<Self>("list").field::<T>("0", 0);
}

impl<A: Layout, B: Layout> Layout for (A, B) {
    const LAYOUT: LayoutHash = LayoutHash::of::<Self>("pair").field::<A>("0", 0).field::<B>("1", 0);
}

impl<T: Layout, const N: usize> Layout for [T; N] {
    const LAYOUT: LayoutHash = LayoutHash::of::<Self>("array").field::<T>("0", N);
}

impl<const N: usize> Layout for Bytes<N> {
    const LAYOUT: LayoutHash = LayoutHash::of::<Self>("Bytes");
}

impl Layout for Counter {
    const LAYOUT: LayoutHash = LayoutHash::of::<AtomicU64>("Counter");
}

impl<C: Coded> Layout for Code<C> {
    const LAYOUT: LayoutHash = {
        assert!(C::NAMES.len() == C::ALL.len(), "each value has a name");
        let mut layout = LayoutHash::of::<Self>("Code");
        let mut at = 0;
        while at < C::NAMES.len() {
            layout = layout.name(C::NAMES[at]);
            at += 1;
        }
        layout
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A type of one name with these fields.
    macro_rules! layout {
        ($($field:ident: $kind:ty),*) => {{
            #[derive(Layout)]
            #[repr(C)]
            struct Cells {
                $($field: $kind),*
            }
            Cells::LAYOUT
        }};
    }

    mod before {
        #[derive(Clone, Copy, PartialEq)]
        pub(super) enum Stage {
            First,
            Second,
        }
        crate::coded!(Stage: First, Second);
    }

    mod after {
        #[derive(Clone, Copy, PartialEq)]
        pub(super) enum Stage {
            Second,
            First,
        }
        crate::coded!(Stage: Second, First);
    }

    #[test]
    fn whatever_changes_what_lies_in_memory_changes_the_layout() {
        let usual = layout!(one: Cell<u32>, two: Cell<u32>);
        let others = [
            layout!(two: Cell<u32>, one: Cell<u32>),
            layout!(one: Cell<u32>, three: Cell<u32>),
            layout!(one: Cell<u32>),
            layout!(one: Cell<u32>, two: Cell<u32>, three: Cell<u8>),
            layout!(one: Cell<u32>, two: Counter),
            layout!(one: Cell<u32>, two: Cell<[u16; 2]>),
            layout!(one: Cell<u32>, two: Bytes<4>),
            layout!(one: Cell<Code<before::Stage>>, two: Cell<u32>),
            layout!(one: Cell<Code<after::Stage>>, two: Cell<u32>),
        ];
        assert_eq!(usual, layout!(one: Cell<u32>, two: Cell<u32>), "and nothing else does");
        for (at, other) in others.iter().enumerate() {
            assert_ne!(usual, *other, "{at}");
            assert!(!others[..at].contains(other), "{at}");
        }
    }

    #[test]
    fn kinds_of_an_enum_count() {
        mod one {
            #[derive(layout::Layout)]
            #[expect(dead_code, reason = "only its layout is of interest")]
            pub(super) enum Role {
                Lend { drive: u32 },
                Vacant,
            }
        }
        mod other {
            #[derive(layout::Layout)]
            #[expect(dead_code, reason = "only its layout is of interest")]
            pub(super) enum Role {
                Lend { function: u32 },
                Vacant,
            }
        }
        assert_ne!(one::Role::LAYOUT, other::Role::LAYOUT);
    }
}
