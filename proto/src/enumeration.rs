/// Implements the conversions between a core enum and a generated one, so that both directions
/// agree. Unknown numbers become `Error::Malformed`.
macro_rules! enumeration {
    ($vis:vis $encode:ident, $decode:ident: $core:ty, $wire:ty, $what:literal { $($variant:ident),* $(,)? }) => {
        $vis fn $encode(value: $core) -> i32 {
            let wire = match value { $(<$core>::$variant => <$wire>::$variant,)* };
            wire.into()
        }

        $vis fn $decode(number: i32, plane: hoplite_core::error::Plane) -> hoplite_core::error::Result<$core> {
            match <$wire>::try_from(number) {
                $(Ok(<$wire>::$variant) => Ok(<$core>::$variant),)*
                _ => Err(hoplite_core::error::Error::malformed(plane, concat!("unknown ", $what))),
            }
        }
    };
}

pub(crate) use enumeration;
