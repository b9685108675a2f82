//! Oncebox.
