//! What texts and numbers of a request look like, for the description of the interface. Types of it only, without a
//! value: what is read is `manager`'s, and each of these says in its terms what that takes.

use std::borrow::Cow;

use manager::model::{BLOCK_MAX, Role};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// Seconds that a join token may be good for: ten years.
pub const JOIN_SECONDS_MAX: u64 = 315_360_000;

macro_rules! described {
    ($(#[$doc:meta])* $name:ident, $called:literal, $schema:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                Schema::Object($schema.build()).into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                $called.into()
            }
        }
    };
}

fn text(pattern: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern))
}

fn number() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer)
}

described!(
    /// A [`manager::model::Name`].
    NameText,
    "Name",
    text("^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
);
described!(
    /// A slot: DOMAIN/SLOT or NODE/DOMAIN/SLOT.
    SlotText,
    "SlotName",
    text("^([A-Za-z0-9][A-Za-z0-9._-]{0,63}/){1,2}[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
);
described!(
    /// 32 bytes in base 32: a hash, a key, a proof.
    BytesText,
    "Bytes32",
    text("^[0-9a-hjkmnp-tv-z]{51}[0g]$")
);
described!(
    /// A [`manager::model::RequestId`].
    RequestText,
    "RequestId",
    text("^([0-9a-hjkmnp-tv-z]{25}[048cgmrw]|\"[0-9a-hjkmnp-tv-z]{25}[048cgmrw]\")$")
);
described!(
    /// An `ETag`, or any.
    VersionText,
    "Version",
    text("^(\\*|[0-9]{1,19}|\"[0-9]{1,19}\")$")
);
described!(
    /// A [`manager::model::OnSilence`].
    OnSilenceText,
    "OnSilence",
    // At most 30 days, in digits.
    text(
        "^(remove|hold\\(([0-9]{1,6}|1[0-9]{6}|2[0-4][0-9]{5}|25[0-8][0-9]{4}|259[01][0-9]{3}|2592000)\\))$"
    )
);
described!(
    /// What somebody may do.
    RoleText,
    "Role",
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(
        [Role::ReadOnly, Role::Operator, Role::Administrator].map(Role::text)
    ))
);
described!(
    /// A [`base::ids::Group`].
    GroupNumber,
    "Group",
    number().minimum(Some(u32::from(base::ids::Group(1).0))).maximum(Some(u32::from(base::ids::Group::MAX.0)))
);
described!(
    /// How many domains a node may have: a power of two.
    DomainsNumber,
    "Domains",
    number().enum_values(Some((0..=BLOCK_MAX.ilog2()).map(|power| 1_u32 << power)))
);
described!(
    /// For how long a join token may be good.
    SecondsNumber,
    "Seconds",
    number().minimum(Some(1_u32)).maximum(Some(JOIN_SECONDS_MAX as u32))
);
described!(
    /// Milliseconds since 1970.
    MillisNumber,
    "Milliseconds",
    number().minimum(Some(0_u32)).maximum(Some(i64::MAX as usize))
);

/// What a function has of its device ([`crate::shapes::Storage`]).
#[derive(Clone, Copy, Debug)]
pub enum StorageShape {}

impl PartialSchema for StorageShape {
    fn schema() -> RefOr<Schema> {
        let one = |key: &str, of: RefOr<Schema>| {
            let object = ObjectBuilder::new().schema_type(Type::Object).property(key, of).required(key);
            object.additional_properties(Some(AdditionalProperties::FreeForm(false))).build()
        };
        let bytes = number().minimum(Some(1_u32)).maximum(Some(i64::MAX as usize)).build();
        let bytes = one("bytes", Schema::Object(bytes).into());
        let namespace = one("namespace", NameText::schema());
        OneOfBuilder::new().item(Schema::Object(bytes)).item(Schema::Object(namespace)).into()
    }
}

impl ToSchema for StorageShape {
    fn name() -> Cow<'static, str> {
        "Storage".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_fit_to_their_schema() {
        assert!(u32::try_from(JOIN_SECONDS_MAX).is_ok());
    }
}
