//! The attributes that only the provider sets: each is named once, beside the field of its model.

/// Declares them for a model whose fields they are; a name without a field fails to compile. From
/// this one list come their rows in the schema (`with_outputs`), what a plan does not know yet
/// (`unknown_outputs`) and what an update keeps (`with_outputs_of`).
macro_rules! outputs {
    ($model:ident {
        at_plan { $($told:ident: $told_type:expr, $told_text:expr;)* }
        after_apply { $($name:ident: $type:expr, $text:expr;)+ }
    }) => {
        impl $model {
            /// The attributes of a configuration and those that only the provider sets.
            fn with_outputs(
                mut settings: $crate::provider::shared::schema::Attributes,
            ) -> $crate::provider::shared::schema::Attributes {
                use tf_provider::schema::AttributeType::*;
                use $crate::provider::shared::schema::computed;
                $(settings.insert(stringify!($told).to_owned(), computed($told_type, $told_text));)*
                $(settings.insert(stringify!($name).to_owned(), computed($type, $text));)+
                settings
            }

            /// What the provider tells after apply only is not known yet.
            pub(in crate::provider) fn unknown_outputs(&mut self) {
                $(self.$name = tf_provider::value::Value::Unknown;)+
            }

            /// A configuration with what the provider told before.
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
