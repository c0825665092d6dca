//! The head under Lustre's parameter names: what `lctl get_param` and `set_param` of `ost.OSS.ost_io.nrs_*` read and
//! write. Text in, text out; what the values mean is the configuration's and the rules' affair.
//!
//! Differs from Lustre: there is no second queue for high-priority requests (deadlines take its place), so `hp` and
//! `both` are refused; a quantum may be read and set only while its policy is in use.
use crate::{ConfigError, DEADLINE_PREFIX, Head, NrsRequest, registry};
use alloc::{
    format,
    string::{String, ToString},
};
use types::{Instant, RequestId};

/// Lustre's parameters that a head answers to.
pub const PARAMETERS: &[&str] =
    &["nrs_policies", "nrs_crrn_quantum", "nrs_orr_quantum", "nrs_trr_quantum", "nrs_obrr_quantum", "nrs_tbf_rule"];

impl Head {
    /// The text of a parameter, one of [`PARAMETERS`].
    ///
    /// # Errors
    /// [`ConfigError::UnknownKey`], or a bad value when the parameter's policy is not in use.
    pub fn get_param(&self, name: &str) -> Result<String, ConfigError> {
        match name {
            "nrs_policies" => Ok(self.policies_text()),
            "nrs_tbf_rule" => Ok(self.config().tbf_rules.listing()),
            _ => {
                let own = self.quantum_policy(name)?;
                let set = self.config().quantum_requests;
                Ok(format!("reg_quantum:{}\n", if set == 0 { own } else { set }))
            }
        }
    }

    /// Sets a parameter; `request` looks queued requests up, in case the policy is switched.
    ///
    /// # Errors
    /// [`ConfigError`]; nothing has changed then.
    pub fn set_param(
        &mut self,
        now: Instant,
        name: &str,
        value: &str,
        request: &mut dyn FnMut(RequestId) -> NrsRequest,
    ) -> Result<(), ConfigError> {
        match name {
            "nrs_policies" => self.switch(now, policy_of(value)?, request),
            "nrs_tbf_rule" => self.set(now, "tbf_rule", value),
            _ => {
                self.quantum_policy(name)?;
                let value = value.trim();
                self.set(now, "quantum_requests", value.strip_prefix("reg_quantum:").unwrap_or(value))
            }
        }
    }

    /// The quantum that the policy of a quantum parameter has by its own choice, if that policy is the one in use.
    fn quantum_policy(&self, name: &str) -> Result<u32, ConfigError> {
        let known = PARAMETERS.iter().find(|p| **p == name).ok_or_else(|| ConfigError::UnknownKey(name.to_string()))?;
        let policy = known.strip_prefix("nrs_").and_then(|n| n.strip_suffix("_quantum")).unwrap_or("");
        let in_use = self.policy_name().strip_prefix(DEADLINE_PREFIX).unwrap_or(self.policy_name());
        if in_use.strip_suffix('+').unwrap_or(in_use) == policy {
            return Ok(registry().iter().find(|e| e.name == in_use).map_or(0, |e| e.facts.quantum));
        }
        let why = format!("policy {policy} is not in use, {} is; switch nrs_policies first", self.policy_name());
        Err(ConfigError::BadValue { key: known, value: policy.to_string(), why })
    }

    fn policies_text(&self) -> String {
        let mut text = String::from("\nregular_requests:\n");
        let wrapped = self.policy_name().starts_with(DEADLINE_PREFIX).then(|| self.policy_name());
        for name in registry().iter().map(|e| e.name).chain(wrapped) {
            let in_use = name == self.policy_name();
            let state = if in_use { "started" } else { "stopped" };
            let fallback = if name == "fifo" { "yes" } else { "no" };
            let (queued, active) = if in_use { (self.queued(), self.in_service()) } else { (0, 0) };
            text.push_str(&format!(
                "  - name: {name}\n    state: {state}\n    fallback: {fallback}\n    queued: {queued:<20}\n    active: {active:<20}\n\n"
            ));
        }
        text
    }
}

/// The policy that a value of `nrs_policies` names: `orr`, `orr reg`, `tbf nid`.
fn policy_of(value: &str) -> Result<&str, ConfigError> {
    let mut words = value.split_whitespace();
    let name = words.next().unwrap_or("");
    for word in words {
        let why = match word {
            "reg" => continue,
            "nid" if name == "tbf" => continue,
            "jobid" | "opcode" | "uid" | "generic" if name == "tbf" => {
                "the fields that a rule's condition names decide who shares a bucket; write tbf alone"
            }
            "hp" | "both" => "there is no second queue for high-priority requests; use a policy with deadlines",
            _ => "write a policy's name",
        };
        return Err(ConfigError::BadValue { key: "nrs_policies", value: value.to_string(), why: why.to_string() });
    }
    Ok(name)
}
