//! Structs that are the same bytes on both sides of the kernel boundary.

/// A field of a [`wire`] struct.
pub(crate) trait Field: Copy {
    const LEN: usize;
    fn put(self, to: &mut [u8]);
    fn take(from: &[u8]) -> Self;
}

macro_rules! int_field {
    ($($int:ty)*) => {$(
        impl Field for $int {
            const LEN: usize = size_of::<$int>();
            fn put(self, to: &mut [u8]) {
                to.iter_mut().zip(self.to_ne_bytes()).for_each(|(to, from)| *to = from);
            }
            fn take(from: &[u8]) -> Self {
                let mut bytes = [0; size_of::<$int>()];
                bytes.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                Self::from_ne_bytes(bytes)
            }
        }
    )*};
}
int_field!(u8 u16 u32 u64);

impl<T: Field + Default, const N: usize> Field for [T; N] {
    const LEN: usize = N * T::LEN;
    fn put(self, to: &mut [u8]) {
        to.chunks_mut(T::LEN).zip(self).for_each(|(to, from)| from.put(to));
    }
    fn take(from: &[u8]) -> Self {
        let mut items = [T::default(); N];
        items.iter_mut().zip(from.chunks(T::LEN)).for_each(|(to, from)| *to = T::take(from));
        items
    }
}

/// Defines a `#[repr(C)]` struct with `LEN`, `to_bytes` and `from_bytes` in native byte order, and refuses to
/// compile if the compiler would put padding between the fields or the length isn't the one stated.
macro_rules! wire {
    ($(#[$doc:meta])* $name:ident = $len:literal { $($(#[$fdoc:meta])* $field:ident: $ty:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }

        const _: () = assert!(size_of::<$name>() == $len && $(<$ty as crate::wire::Field>::LEN +)* 0 == $len);

        impl $name {
            /// Length, bytes.
            pub const LEN: usize = $len;

            /// The bytes as the kernel programs see them.
            pub fn to_bytes(&self) -> [u8; $len] {
                let mut bytes = [0; $len];
                let mut rest = bytes.as_mut_slice();
                $(
                    let len = <$ty as crate::wire::Field>::LEN;
                    let (now, later) = rest.split_at_mut(len.min(rest.len()));
                    crate::wire::Field::put(self.$field, now);
                    rest = later;
                )*
                let _ = rest;
                bytes
            }

            /// Reads what the kernel programs wrote.
            pub fn from_bytes(bytes: &[u8; $len]) -> Self {
                let mut rest = bytes.as_slice();
                $(
                    let len = <$ty as crate::wire::Field>::LEN;
                    let (now, later) = rest.split_at(len.min(rest.len()));
                    let $field = <$ty as crate::wire::Field>::take(now);
                    rest = later;
                )*
                let _ = rest;
                Self { $($field,)* }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::from_bytes(&[0; $len])
            }
        }
    };
}
pub(crate) use wire;
