//! Safe verbs over any Device
