//! The attributes of a block of the provider configuration, or of a data source: each is named
//! once.

use std::collections::BTreeMap;

use tf_provider::value::Value;

/// A value of a configuration that may be known only after apply, whole or in part.
pub(in crate::provider) trait MayBeUnknown {
    /// Whether some of it is only known after apply.
    fn has_unknown(&self) -> bool;
}

impl<T: MayBeUnknown> MayBeUnknown for Value<T> {
    fn has_unknown(&self) -> bool {
        match self {
            Self::Unknown => true,
            Self::Null => false,
            Self::Value(value) => value.has_unknown(),
        }
    }
}

impl<T: MayBeUnknown> MayBeUnknown for BTreeMap<String, T> {
    fn has_unknown(&self) -> bool {
        self.values().any(MayBeUnknown::has_unknown)
    }
}

macro_rules! is_known {
    ($($type:ty),*) => {
        $(impl MayBeUnknown for $type {
            fn has_unknown(&self) -> bool {
                false
            }
        })*
    };
}

is_known!(String, i64, bool);

/// Declares a model whose attributes are named once: its fields and its rows in the schema
/// (`settings`) come from this one list. After a lone semicolon: a field that holds what the list
/// does not name.
macro_rules! table {
    (
        $(#[$about:meta])*
        $visibility:vis struct $model:ident {
            $($field:vis $name:ident: $type:ty => $attribute:expr;)+
            $(; $(#[$more_about:meta])* $more:ident: $more_type:ty;)?
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        $visibility struct $model {
            $($field $name: $type,)+
            $($(#[$more_about])* $more: $more_type,)?
        }

        impl $model {
            /// The rows of its attributes in the schema.
            pub(in crate::provider) fn settings() -> $crate::provider::shared::schema::Attributes {
                #[allow(unused_imports, reason = "not every table has every kind")]
                use tf_provider::schema::AttributeType::*;
                $crate::provider::shared::schema::attributes([$((stringify!($name), $attribute),)+])
            }
        }
    };
}

/// Declares the model of a block of the provider configuration: a table, and what makes it unknown
/// ([`MayBeUnknown`]). `check` takes the model apart without `..`, so that a setting that it leaves
/// out fails to compile.
macro_rules! block {
    (
        $(#[$about:meta])*
        $visibility:vis struct $model:ident {
            $($name:ident: $type:ty => $attribute:expr;)+
            $(; $(#[$more_about:meta])* $more:ident: $more_type:ty;)?
        }
    ) => {
        $crate::provider::shared::block::table! {
            $(#[$about])*
            $visibility struct $model {
                $($name: $type => $attribute;)+
                $(; $(#[$more_about])* $more: $more_type;)?
            }
        }

        impl $crate::provider::shared::block::MayBeUnknown for $model {
            fn has_unknown(&self) -> bool {
                use $crate::provider::shared::block::MayBeUnknown;
                $(MayBeUnknown::has_unknown(&self.$name) ||)+ $(MayBeUnknown::has_unknown(&self.$more) ||)? false
            }
        }
    };
}

pub(in crate::provider) use {block, table};
