//! A response body that can break off.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// Cuts the connection. Only the connection receives this error.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut on purpose")]
pub(crate) struct Cut;

/// A complete or truncated body.
#[derive(Debug)]
pub(crate) struct ReplyBody {
    bytes: Bytes,
    /// `Content-Length` minus the length of `bytes`; a positive value breaks off.
    missing: u64,
    flushed: bool,
}

impl ReplyBody {
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self { bytes, missing: 0, flushed: false }
    }

    /// Returns the first `keep` bytes, although `Content-Length` includes all.
    pub(crate) fn broken(mut bytes: Bytes, keep: usize) -> Self {
        let rest = bytes.split_off(keep.min(bytes.len()));
        Self { bytes, missing: rest.len() as u64, flushed: false }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if !self.bytes.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.bytes)))));
        }
        if self.missing == 0 {
            return Poll::Ready(None);
        }
        if !self.flushed {
            // Yield once, so that the server sends the buffered data before the error.
            self.flushed = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(Cut)))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty() && self.missing == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64 + self.missing)
    }
}
