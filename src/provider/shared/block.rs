//! Declares a configuration block's attributes once, for both its model and its schema.

use std::collections::BTreeMap;

use tf_provider::value::Value;

/// A configuration value that can be unknown until apply, in whole or in part.
pub(in crate::provider) trait MayBeUnknown {
    /// Returns true if any part is unknown until apply.
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

/// Declares a model and its schema rows (`settings`) from one list of attributes. After a lone
/// semicolon: a field for the attributes outside the list.
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
            /// Returns the attributes' schema rows.
            pub(in crate::provider) fn settings() -> $crate::provider::shared::schema::Attributes {
                #[allow(unused_imports, reason = "not every table has every kind")]
                use tf_provider::schema::AttributeType::*;
                $crate::provider::shared::schema::attributes([$((stringify!($name), $attribute),)+])
            }
        }
    };
}

/// Declares a provider block's model: a table with [`MayBeUnknown`]. `check` destructures the model
/// without `..`, so an omitted setting fails to compile.
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
