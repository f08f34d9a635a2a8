//! Plugging a slot into a machine that runs, and out of it.

use std::path::PathBuf;

use qmp::{Error, Qmp};
use serde_json::{Value, json};

use super::QmpError;
use crate::qemu_args;

/// A slot as QEMU knows it.
#[derive(Debug, Clone)]
pub(crate) struct Plug {
    /// The device's id.
    pub(crate) id: String,
    /// The port it is plugged into; none for one that QEMU chooses.
    pub(crate) bus: Option<String>,
    /// Its vfio-user socket.
    pub(crate) socket: PathBuf,
}

impl Plug {
    /// The device in the form that `-device` and `device_add` share.
    pub(crate) fn argument(&self) -> Value {
        qemu_args::device(&self.id, self.bus.as_deref(), &self.socket)
    }

    /// Plugs it in.
    ///
    /// # Errors
    /// [`QmpError::Incoming`] where the machine is just being migrated to.
    pub(crate) fn add(&self, qmp: &mut Qmp) -> Result<(), QmpError> {
        super::stay::refuse_incoming(qmp)?;
        qmp.execute("device_add", self.argument())?;
        Ok(())
    }

    /// Asks the guest to let go of it; QEMU takes it out when the guest has.
    ///
    /// # Errors
    /// [`QmpError::NotEnabled`] where QEMU would not survive it.
    pub(crate) fn remove(&self, qmp: &mut Qmp) -> Result<(), QmpError> {
        // QEMU 11.1.3, and those before, abort when a vfio-user device with MSI-X goes, unless they have just flattened
        // their view of memory, which this makes them do, while the device is in it. Whether a later one needs it is
        // not known; it harms none.
        if !self.is_decoded(&qmp.execute("query-pci", json!({}))?) {
            return Err(QmpError::NotEnabled(self.id.clone()));
        }
        qmp.human("info mtree -f")?;
        match qmp.execute("device_del", json!({ "id": self.id })) {
            // Somebody has taken it out already.
            Err(Error::Refused { class, .. }) if class == "DeviceNotFound" => Ok(()),
            result => Ok(result.map(|_| ())?),
        }
    }

    /// Whether the device's memory is in the guest's view, by what `query-pci` returned; also where QEMU shows no such
    /// device.
    fn is_decoded(&self, buses: &Value) -> bool {
        let mut devices: Vec<&Value> = children(buses).collect();
        while let Some(device) = devices.pop() {
            if device["qdev_id"] == self.id.as_str() {
                let regions = device["regions"].as_array().into_iter().flatten();
                // An address of all-ones is none.
                return regions.filter(|it| it["type"] == "memory").all(|it| it["address"] != -1);
            }
            devices.extend(device["pci_bridge"]["devices"].as_array().into_iter().flatten());
        }
        true
    }

    /// Whether QEMU still has it. The event that says otherwise does not come for such devices.
    pub(crate) fn is_there(&self, qmp: &mut Qmp) -> Result<bool, QmpError> {
        let devices = qmp.execute("qom-list", json!({ "path": "/machine/peripheral" }))?;
        let has_name = |device: &Value| device["name"] == self.id.as_str();
        Ok(devices.as_array().is_some_and(|devices| devices.iter().any(has_name)))
    }

    /// Tells the guest by the port it is plugged into that the function has not answered: an AER error, Completion
    /// Timeout (PCIe 6.0 §6.2.3.2.4.4), which its driver's error handlers hear of.
    pub(crate) fn report_timeout(&self, qmp: &mut Qmp) -> Result<(), QmpError> {
        let device = format!("/machine/peripheral/{}", self.id);
        let bus = qmp.execute("qom-get", json!({ "path": device, "property": "parent_bus" }))?;
        // A bus is a child of the device that has it.
        let port = bus.as_str().and_then(|bus| bus.strip_prefix("/machine/peripheral/")?.split_once('/'));
        let Some((port, _)) = port else {
            return Err(Error::Invalid(format!("{} is plugged into {bus}", self.id)).into());
        };
        let line = format!("pcie_aer_inject_error {port} COMP_TIME");
        let said = qmp.human(&line)?;
        if said.starts_with("OK") {
            return Ok(());
        }
        Err(Error::Refused { command: line, class: String::new(), description: said.trim().to_owned() }
            .into())
    }
}

/// The devices on buses.
fn children(buses: &Value) -> impl Iterator<Item = &Value> {
    let buses = buses.as_array().into_iter().flatten();
    buses.flat_map(|bus| bus["devices"].as_array().into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What reporting a timeout comes to where QEMU answers so.
    fn report(answers: &[Value]) -> Result<(), QmpError> {
        let lines: Vec<String> =
            answers.iter().map(|answer| format!("{}\n", json!({ "return": answer }))).collect();
        let (qmp, _qemu) = crate::qmp::tests::qemu(11, &lines.concat());
        let plug = Plug { id: "s0".into(), bus: None, socket: "/run/s0".into() };
        plug.report_timeout(&mut qmp.unwrap())
    }

    #[test]
    fn a_function_that_does_not_answer_is_an_error_of_its_port() {
        let bus = json!("/machine/peripheral/rp1/rp1");
        report(&[bus.clone(), json!("OK id: rp1 root bus: 0000:00, bus: 0 devfn: 2.0\r\n")]).unwrap();
        let refused = report(&[bus, json!("Error: no such device\r\n")]).unwrap_err().to_string();
        assert_eq!(refused, "QEMU refused `pcie_aer_inject_error rp1 COMP_TIME`: Error: no such device");
        let unplugged = report(&[json!("/machine/unattached/device[3]/pcie.0")]).unwrap_err();
        assert!(matches!(unplugged, QmpError::Qmp(Error::Invalid(_))), "{unplugged}");
    }

    #[test]
    fn what_no_guest_has_enabled_is_not_taken_out() {
        let plug = Plug { id: "s0".into(), bus: None, socket: "/run/s0".into() };
        let buses = |address: i64| {
            let region = json!({ "bar": 0, "type": "memory", "address": address, "size": 65536 });
            let device = json!({ "qdev_id": "s0", "regions": [region] });
            let port = json!({ "qdev_id": "rp1", "regions": [], "pci_bridge": { "devices": [device] } });
            json!([{ "bus": 0, "devices": [{ "qdev_id": "", "regions": [] }, port] }])
        };
        assert!(plug.is_decoded(&buses(0xfe40_0000)) && !plug.is_decoded(&buses(-1)));
        assert!(plug.is_decoded(&json!([])), "it is refused by name then");
        let answer = format!("{}\n", json!({ "return": buses(-1) }));
        let (qmp, _qemu) = crate::qmp::tests::qemu(11, &answer);
        assert!(matches!(plug.remove(&mut qmp.unwrap()), Err(QmpError::NotEnabled(_))));
    }

    #[test]
    fn a_slot_is_a_device_with_a_socket() {
        let plug = Plug { id: "s0".into(), bus: Some("rp1".into()), socket: "/run/s0".into() };
        let expected = json!({
            "driver": "vfio-user-pci", "id": "s0", "bus": "rp1", "socket": { "type": "unix", "path": "/run/s0" }
        });
        assert_eq!(plug.argument(), expected);
        assert_eq!(Plug { bus: None, ..plug }.argument().get("bus"), None);
    }
}
