//! Authentication: sessions, basic authentication, and fallbacks after a rejection.

use super::*;

impl Bmc {
    /// Records rejected credentials. Credentials that never worked are not tried again, to avoid
    /// locking the account. Others are retried once after a while, because HPE, AMI and NVIDIA BMCs
    /// reject valid credentials temporarily.
    pub(super) async fn refused(&self, message: String) -> BackendError {
        let mut access = self.access.write().await;
        self.refuse(&mut access, message)
    }

    pub(super) fn refuse(&self, access: &mut Access, message: String) -> BackendError {
        let now = self.clock.monotonic();
        let doubt = self.limits.patience.doubt;
        if self.proven.load(Ordering::Acquire) && access.doubted.is_none_or(|since| now.saturating_sub(since) < doubt) {
            let since = *access.doubted.get_or_insert(now);
            let cause = format!(
                "it refused the credentials that it accepted before ({message}); the provider retries them {}s later",
                doubt.as_secs_f32()
            );
            self.is_down_until(since + doubt, &cause);
            return BackendError::Unreachable { address: self.address().into(), cause: cause.into() };
        }
        access.refused.get_or_insert_with(|| message.clone());
        BackendError::Unauthorized { address: self.address().into(), message: message.into() }
    }

    /// Returns the next request's authentication. The first request uses basic authentication,
    /// because a single read does not justify login and logout. A session is opened if more
    /// requests follow.
    pub(super) async fn proof(&self) -> Result<RequestAuth, BackendError> {
        let mut access = self.access.write().await;
        if let Some(message) = &access.refused {
            return Err(BackendError::Unauthorized { address: self.address().into(), message: message.clone().into() });
        }
        if let Some((token, _)) = &access.session {
            return Ok(RequestAuth::Session(Arc::clone(token)));
        }
        let first = !self.proven.load(Ordering::Acquire) && !self.only_sessions();
        if self.authentication == Authentication::Basic || access.no_sessions || first {
            return Ok(RequestAuth::Basic);
        }
        // Other requests wait for this login.
        match self.log_in().await {
            Ok((token, path)) => {
                access.had_session = true;
                access.session = Some((Arc::clone(&token), path));
                Ok(RequestAuth::Session(token))
            }
            // The same credentials were accepted before, so the login itself was rejected.
            Err(BackendError::Unauthorized { .. })
                if self.proven.load(Ordering::Acquire) && !access.had_session && !self.only_sessions() =>
            {
                access.no_sessions = true;
                Ok(RequestAuth::Basic)
            }
            Err(BackendError::Unauthorized { message, .. }) => Err(self.refuse(&mut access, message.into_raw())),
            // Without the basic scheme, basic authentication would count as a wrong password.
            Err(error @ BackendError::Rejected { transient: true, .. }) if self.only_sessions() => Err(error),
            // The BMC lacks a session service or free sessions, or it has opened a session with an
            // unknown name. Another attempt could use up further sessions.
            Err(BackendError::Rejected { .. } | BackendError::Protocol { .. }) => {
                access.no_sessions = true;
                Ok(RequestAuth::Basic)
            }
            Err(error) if error.outcome_unknown() => {
                if self.only_sessions() {
                    // The actual request was not sent, because it needs the session.
                    return Err(BackendError::Unreachable {
                        address: self.address().into(),
                        cause: error.to_string().into(),
                    });
                }
                access.no_sessions = true;
                Ok(RequestAuth::Basic)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn only_sessions(&self) -> bool {
        self.authentication == Authentication::Session && self.no_basic.load(Ordering::Relaxed)
    }

    pub(super) async fn log_in(&self) -> Result<(Arc<SecretString>, String), BackendError> {
        let known = self.resources.lock().unwrap_or_else(PoisonError::into_inner).sessions.clone();
        if let Some(path) = known {
            return self.log_in_at(&path).await;
        }
        match self.log_in_at(SESSIONS).await {
            Err(error @ BackendError::Rejected { status: 404 | 405, .. }) => {
                let until = self.until(&Method::GET);
                let root = self.exchange(&Method::GET, "/redfish/v1/", until, Ok).await?;
                let root = self.read(&Method::GET, "/redfish/v1/", root, until).await?.body;
                match root["Links"]["Sessions"]["@odata.id"].as_str() {
                    Some(path) if path.trim_end_matches('/') != SESSIONS => self.log_in_at(path).await,
                    _ => Err(error),
                }
            }
            result => result,
        }
    }

    pub(super) async fn log_in_at(&self, at: &str) -> Result<(Arc<SecretString>, String), BackendError> {
        let body = json!({ "UserName": self.username, "Password": self.password.expose_secret() });
        let until = self.until(&Method::POST);
        let response = self.exchange(&Method::POST, at, until, |request| Ok(request.json(&body))).await?;
        let token = response.headers().get("X-Auth-Token").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let location =
            response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let answer = self.read(&Method::POST, at, response, until).await?;
        let path = location.as_deref().and_then(|location| self.own_path(location));
        let path = path.or_else(|| answer.body["@odata.id"].as_str().map(str::to_owned));
        match (token, path) {
            (Some(token), Some(path)) => Ok((Arc::new(SecretString::from(token)), path)),
            _ => Err(self.protocol("the login was accepted, but the answer lacks the session's token or address")),
        }
    }

    pub(super) async fn forget_session(&self, token: &Arc<SecretString>) {
        let mut access = self.access.write().await;
        if access.session.as_ref().is_some_and(|(current, _)| Arc::ptr_eq(current, token)) {
            access.session = None;
        }
    }

    /// Ends the session, if there is one.
    pub(in crate::backend::redfish) async fn log_out(&self) {
        let session = self.access.write().await.session.take();
        if let Some((token, path)) = session {
            let proof = RequestAuth::Session(token);
            if let Err(error) = self.send(&Method::DELETE, &path, None, None, &proof).await {
                tracing::debug!(%error, "the session was not ended; the BMC expires it");
            }
        }
    }
}
