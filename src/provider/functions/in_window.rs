//! `in_window`: returns true if a window is open.

use async_trait::async_trait;
use tf_provider::{
    Diagnostics, Function,
    schema::{Description, FunctionSchema, Type},
};

use crate::provider::functions::arguments::{Arguments, parameters, read};

/// The function.
#[derive(Debug)]
pub(in crate::provider) struct InWindow;

#[async_trait]
impl Function for InWindow {
    type Input<'a> = Arguments;
    type Output<'a> = bool;

    fn schema(&self, _: &mut Diagnostics) -> Option<FunctionSchema> {
        Some(FunctionSchema {
            parameters: parameters("at", "The time (RFC 3339), for example `plantimestamp()`."),
            return_type: Type::Bool,
            summary: "Returns true if a window is open".to_owned(),
            description: Description::markdown(
                "Returns true if a window is open at a given time. The window includes its start time and excludes its end \
                 time.",
            ),
            ..FunctionSchema::default()
        })
    }

    async fn call<'a>(&self, diags: &mut Diagnostics, arguments: Arguments) -> Option<bool> {
        let (window, at) = read(diags, &arguments)?;
        Some(window.open_at(at).is_some())
    }
}
