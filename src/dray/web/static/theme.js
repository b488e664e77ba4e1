// Before the first paint, so that a page in the chosen colours does not flash in the others.
"use strict";
try {
  const theme = localStorage.getItem("dray.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* no storage here: as the system has it */ }
