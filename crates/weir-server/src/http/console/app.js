// Shows which instance this is.

const answer = await fetch('v1/instance');
if (answer.ok) {
  const instance = await answer.json();
  document.getElementById('instance').textContent = `${instance.name}, version ${instance.version}`;
}
