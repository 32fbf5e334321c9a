{
  const button = document.getElementById("theme"), root = document.documentElement.dataset;
  let kept = null;
  try { kept = localStorage.getItem("qpsbgd-theme"); } catch { /* a page opened from a file may have no storage */ }
  const set = (value) => { root.theme = value; button.textContent = value === "dark" ? "☀ Light" : "☾ Dark"; };
  set(kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  button.hidden = false;
  button.addEventListener("click", () => {
    set(root.theme === "dark" ? "light" : "dark");
    try { localStorage.setItem("qpsbgd-theme", root.theme); } catch { /* as above */ }
  });
}
