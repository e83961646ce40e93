"""The ground floor: knows the machine by executing checks on it."""
