//! One behaviour suite for every Device
