// Rate limits with node-redis. WEIR_PORT is the port of weir, 9049 if it is not set.
'use strict';

const { createClient } = require('redis');

async function main() {
  const weir = createClient({ socket: { port: Number(process.env.WEIR_PORT || 9049), host: '127.0.0.1' } });
  weir.on('error', (error) => { throw error; });
  await weir.connect();
  await weir.del(['js:login', 'js:api']);

  // two in each minute, counted from the first: the reply is what was left before
  const before = [];
  for (let i = 0; i < 3; i++) {
    before.push(await weir.sendCommand(['RL.REDUCE', 'js:login', '2', '60']));
  }
  console.log(`RL.REDUCE: ${before.join(', ')}`);

  // a burst of 16, then 30 a minute
  const throttle = ['CL.THROTTLE', 'js:api', '15', '30', '60'];
  const [limited, , remaining] = await weir.sendCommand(throttle);
  console.log(`CL.THROTTLE: ${limited ? 'limited' : 'allowed'}, ${remaining} left`);

  // commands of one turn leave together; those of multi() are a transaction
  for (const send of [
    () => Promise.all([throttle, throttle, throttle].map((command) => weir.sendCommand(command))),
    () => weir.multi().addCommand(throttle).addCommand(throttle).addCommand(throttle).exec(),
  ]) {
    await weir.del('js:api');
    const replies = await send();
    console.log(`pipeline: ${replies.map(([, limit, left]) => limit - left).join(', ')} tokens taken`);
  }

  console.log(`reset: ${await weir.del('js:api')}`);

  // what a rule answers, as names and values in turn
  for (let i = 0; i < 3; i++) {
    const [, code, , left] = await weir.sendCommand(['WEIR.TAKE', 'shop', 'tenant', 'js']);
    console.log(`WEIR.TAKE: ${code} ${left}`);
  }
  await weir.quit();
}

main();
