//! Attributes that only the provider sets, each declared once.

/// Declares output attributes for a model with matching fields; a name without a field fails to
/// compile. The list generates the schema rows (`with_outputs`), the values unknown during a plan
/// (`unknown_outputs`) and the values that an update keeps (`with_outputs_of`).
macro_rules! outputs {
    ($model:ident {
        at_plan { $($told:ident: $told_type:expr, $told_text:expr;)* }
        after_apply { $($name:ident: $type:expr, $text:expr;)+ }
    }) => {
        impl $model {
            /// Adds the output attributes to a configuration's schema.
            fn with_outputs(
                mut settings: $crate::provider::shared::schema::Attributes,
            ) -> $crate::provider::shared::schema::Attributes {
                use tf_provider::schema::AttributeType::*;
                use $crate::provider::shared::schema::computed;
                $(settings.insert(stringify!($told).to_owned(), computed($told_type, $told_text));)*
                $(settings.insert(stringify!($name).to_owned(), computed($type, $text));)+
                settings
            }

            /// Marks the outputs of `after_apply` as unknown.
            pub(in crate::provider) fn unknown_outputs(&mut self) {
                $(self.$name = tf_provider::value::Value::Unknown;)+
            }

            /// Copies the prior outputs into a configuration.
            #[allow(dead_code, reason = "where every change replaces, nothing is kept")]
            pub(in crate::provider) fn with_outputs_of(self, prior: &Self) -> Self {
                Self {
                    $($told: Clone::clone(&prior.$told),)*
                    $($name: Clone::clone(&prior.$name),)+
                    ..self
                }
            }
        }
    };
}

pub(in crate::provider) use outputs;
