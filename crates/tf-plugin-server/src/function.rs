//! A common trait for functions of any signature.
use std::{fmt::Write, sync::OnceLock};

use async_trait::async_trait;
use prost::bytes::Bytes;
use tf_provider::{AttributePathStep, Diagnostic, Diagnostics, Function, schema::FunctionSchema};

use super::{
    codec::{self, Received},
    proto::tfplugin6 as wire,
    schema,
    shape::Shape,
};

/// A function of any signature, created by [`function`]. Only this module implements it.
pub trait AnyFunction: Erased {}

/// Wraps a function for serving.
///
/// Its input is decoded from a sequence of all arguments: a tuple, a struct with a field per
/// parameter, or a `Vec` for parameters of one type. Variadic arguments come last in the sequence.
pub fn function<F: Function + 'static>(function: F) -> Box<dyn AnyFunction> {
    Box::new(Adapter { inner: function, schema: OnceLock::new() })
}

/// The object-safe interface of a function.
#[async_trait]
pub trait Erased: Send + Sync {
    fn schema(&self) -> Result<&FunctionSchema, Diagnostics>;
    async fn call(&self, diags: &mut Diagnostics, request: &wire::call_function::Request)
    -> Option<wire::DynamicValue>;
}

struct Adapter<F> {
    inner: F,
    schema: OnceLock<Result<FunctionSchema, Diagnostics>>,
}

impl<F: Function + 'static> AnyFunction for Adapter<F> {}

#[async_trait]
impl<F: Function + 'static> Erased for Adapter<F> {
    fn schema(&self) -> Result<&FunctionSchema, Diagnostics> {
        let schema = self.schema.get_or_init(|| {
            let mut diags = Diagnostics::default();
            match Function::schema(&self.inner, &mut diags) {
                Some(schema) if diags.errors.is_empty() => Ok(schema),
                _ => {
                    let of = std::any::type_name::<F>();
                    super::diagnostics::ensure_error(&mut diags, || {
                        super::diagnostics::internal_error("GetFunctions", of, "The schema is missing.")
                    });
                    Err(diags)
                }
            }
        });
        schema.as_ref().map_err(Clone::clone)
    }

    async fn call(
        &self,
        diags: &mut Diagnostics,
        request: &wire::call_function::Request,
    ) -> Option<wire::DynamicValue> {
        let schema = super::diagnostics::known(diags, self.schema())?;
        let shape = arguments_shape(schema, request.arguments.len());
        let arguments = sequence(&request.arguments);
        let arguments = Received::new(Some(&arguments), &shape, "argument list");
        let arguments = arguments.decode(diags)?;
        let result = Function::call(&self.inner, diags, arguments).await?;
        codec::send(diags, &result)
    }
}

pub(super) fn to_wire(of: &FunctionSchema) -> wire::Function {
    schema::function_to_wire(of)
}

fn arguments_shape(schema: &FunctionSchema, count: usize) -> Shape {
    let fixed = schema.parameters.iter().map(|of| Shape::of_type(&of.param_type));
    let rest = schema.variadic.iter().map(|of| Shape::of_type(&of.param_type)).cycle();
    Shape::Tuple(fixed.chain(rest).take(count).collect())
}

/// Combines all arguments, which hosts send as separate MessagePack values, into a single array.
fn sequence(arguments: &[wire::DynamicValue]) -> wire::DynamicValue {
    let mut msgpack = Vec::new();
    let count = u32::try_from(arguments.len()).unwrap_or(u32::MAX);
    // Writing to a vector does not fail.
    let _ = rmp::encode::write_array_len(&mut msgpack, count);
    for argument in arguments {
        if codec::is_null(Some(argument)) {
            msgpack.extend_from_slice(&codec::null().msgpack);
        } else {
            msgpack.extend_from_slice(&argument.msgpack);
        }
    }
    wire::DynamicValue { msgpack: msgpack.into(), json: Bytes::new() }
}

/// Combines all errors into a single text, because a function returns one error and no warnings.
/// Refers to an argument if all errors do. Hosts append a full stop.
pub(super) fn error(diags: &Diagnostics) -> Option<wire::FunctionError> {
    let argument = |of: &Diagnostic| match of.attribute.steps.first() {
        Some(AttributePathStep::Index(index)) => Some(*index),
        _ => None,
    };
    let first = argument(diags.errors.first()?);
    let function_argument = first.filter(|_| diags.errors.iter().all(|of| argument(of) == first));
    let mut text = String::new();
    for error in &diags.errors {
        if !text.is_empty() {
            text.push('\n');
        }
        if let (None, Some(index)) = (function_argument, argument(error)) {
            let _ = write!(text, "Argument {}: ", index + 1);
        }
        text.push_str(&error.summary);
        if !error.detail.is_empty() {
            let _ = write!(text, ": {}", error.detail);
        }
    }
    text.truncate(text.trim_end_matches('.').len());
    Some(wire::FunctionError { text, function_argument })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tf_provider::AttributePath;

    use super::*;
    use crate::diagnostic;

    #[test]
    fn errors_about_one_argument_point_at_it() {
        let mut diags = Diagnostics::default();
        assert!(error(&diags).is_none());
        diags.add_error(diagnostic("bad", "so bad.", AttributePath::function_argument(1)));
        let one = error(&diags).unwrap();
        assert_eq!((one.text.as_str(), one.function_argument), ("bad: so bad", Some(1)));
        diags.add_error(diagnostic("worse", "", AttributePath::function_argument(0)));
        let two = error(&diags).unwrap();
        assert_eq!(two.text, "Argument 2: bad: so bad.\nArgument 1: worse");
        assert_eq!(two.function_argument, None);
    }
}
