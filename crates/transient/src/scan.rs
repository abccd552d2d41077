//! From a disk or image to a report.
