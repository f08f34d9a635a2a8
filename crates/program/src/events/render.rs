use serde_json::Value;

use super::Record;
use crate::status::shown;

/// An event as a line of the log.
pub(crate) fn render(record: &Record) -> String {
    let level = match record.severity.as_str() {
        "warning" => "WARN".to_owned(),
        other => other.to_uppercase(),
    };
    let mut line = format!("{} {level:>5} {}", record.time, record.message);
    for (name, value) in record.values.iter() {
        match value {
            Value::String(text) => line += &format!(" {name}={text:?}"),
            other => line += &format!(" {name}={other}"),
        }
    }
    shown(&line) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_looks_as_in_the_log() {
        let json = r#"{"seq":1,"time":"2026-11-23T12:58:12.123456Z","severity":"warning","kind":"guest-refused",
            "message":"a virtual machine was sent away:\u001b[2J no","function":"nvme0","pid":7}"#;
        let record: Record = serde_json::from_str(json).unwrap();
        assert_eq!(
            render(&record),
            "2026-11-23T12:58:12.123456Z  WARN a virtual machine was sent away:?[2J no function=\"nvme0\" pid=7\n"
        );
    }
}
