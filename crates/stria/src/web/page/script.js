// The page of stria web: takes a document each second and shows it. Names of jobs and clients are other people's text: they
// go into the page as text only.
'use strict';
(() => {
  const SVG = 'http://www.w3.org/2000/svg';
  const $ = (id) => document.getElementById(id);

  // ---- making elements
  const make = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
  const draw = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }
  // A text that is as it was is left alone, so that readers and selections stay where they are.
  function say(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  // ---- numbers as people read them
  const NONE = '–';
  const known = (n) => typeof n === 'number' && Number.isFinite(n);
  function count(n) {
    if (!known(n)) return NONE;
    if (n >= 1e9) return (n / 1e9).toFixed(1) + ' G';
    if (n >= 1e6) return (n / 1e6).toFixed(1) + ' M';
    if (n >= 1e4) return (n / 1e3).toFixed(1) + ' k';
    return n < 10 && n % 1 > 0.04 ? n.toFixed(1) : Math.round(n).toString();
  }
  function bytes(n) {
    if (!known(n)) return NONE;
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
    let unit = 0;
    while (n >= 1023.5 && unit < units.length - 1) { n /= 1024; unit += 1; }
    return (unit === 0 || n >= 99.95 ? Math.round(n) : n.toFixed(1)) + ' ' + units[unit];
  }
  const speed = (n) => (known(n) ? bytes(n) + '/s' : NONE);
  const share = (part, whole) => (known(part) && whole > 0 ? Math.round((100 * part) / whole) + ' %' : NONE);
  function micros(us) {
    if (!known(us)) return NONE;
    if (us < 1000) return us + ' µs';
    return us < 1e6 ? (us / 1e3).toFixed(us < 1e4 ? 1 : 0) + ' ms' : (us / 1e6).toFixed(1) + ' s';
  }
  const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();
  const several = (n, one, many) => n + ' ' + (n === 1 ? one : many);
  const shortName = (target) => target.slice(target.lastIndexOf('-') + 1);

  // ---- what a server is like, in a word
  function stateOf(server) {
    if (!server.answers) {
      const connected = server.state === 'Full' || server.state === 'Replaying';
      return [connected ? 'does not answer' : 'away', 'bad'];
    }
    if (server.store === 'failed') return ['store failed', 'bad'];
    if (server.active === false) return ['deactivated', 'warn'];
    if (server.recovery) return ['recovers', 'warn'];
    if (server.store === 'full') return ['store is full', 'warn'];
    if (server.closed === true) return ['takes no new files', 'warn'];
    return server.state === 'Full' ? ['serves', 'good'] : [String(server.state).toLowerCase(), 'warn'];
  }
  const since = (server) => (known(server.since) ? ' since ' + clock(server.since) : '');
  const used = (space) => (space && space.total_bytes > 0 ? Math.max(0, 1 - space.free_bytes / space.total_bytes) : null);

  // ---- tables
  // A column: title, what a row shows there (a text, or {text, kind, part}), and how.
  class Table {
    constructor(section, caption, columns) {
      this.columns = columns;
      this.rows = new Map();
      this.body = make('tbody');
      const id = 'table-' + caption.toLowerCase().replace(/[^a-z]+/g, '-');
      const heads = columns.map((c, i) => make('th', { scope: 'col', class: i > 0 && c.kind !== 'text' ? 'number' : null }, c.title));
      const table = make('table', {}, make('caption', { id }, make('span', {}, caption)), make('thead', {}, make('tr', {}, ...heads)), this.body);
      $(section).append(make('div', { class: 'scroll', role: 'region', 'aria-labelledby': id, tabindex: '0' }, table));
    }
    show(rows, nobody) {
      const shown = new Set();
      rows.forEach(([key, row], at) => {
        shown.add(key);
        let line = this.rows.get(key);
        if (!line) {
          line = make('tr', {}, ...this.columns.map((c, i) => (i === 0 ? make('th', { scope: 'row' }) : make('td'))));
          this.rows.set(key, line);
        }
        this.columns.forEach((column, i) => cell(line.cells[i], column, column.show(row)));
        if (this.body.rows[at] !== line) this.body.insertBefore(line, this.body.rows[at] || null);
      });
      for (const [key, line] of this.rows) {
        if (!shown.has(key)) { line.remove(); this.rows.delete(key); }
      }
      if (rows.length === 0 && nobody) {
        const line = make('tr', {}, make('td', { class: 'empty', colspan: this.columns.length }, nobody));
        this.rows.set('', line);
        this.body.append(line);
      }
    }
  }
  function cell(element, column, value) {
    const { text, kind = '', part = null } = typeof value === 'object' && value !== null ? value : { text: value };
    const first = element.tagName === 'TH';
    const name = [first || column.kind === 'text' ? '' : 'number', kind].filter(Boolean).join(' ');
    if (element.className !== name) element.className = name;
    const mini = element.querySelector('svg');
    if (part === null) {
      if (mini) mini.remove();
      say(element, String(text));
      return;
    }
    if (!mini || element.firstChild.nodeType !== Node.TEXT_NODE) {
      element.textContent = String(text);
      element.append(draw('svg', { class: 'mini', width: 48, height: 8, 'aria-hidden': 'true' },
        draw('rect', { class: 'track', width: 48, height: 8, rx: 2 }), draw('rect', { class: 'fill', height: 8, rx: 2 })));
    } else if (element.firstChild.data !== String(text)) {
      element.firstChild.data = String(text);
    }
    element.querySelector('.fill').setAttribute('width', (48 * Math.min(1, Math.max(0, part))).toFixed(1));
  }
  const col = (title, show, kind) => ({ title, show, kind });

  const hits = (cache, name) => {
    const c = cache && cache.classes.find((one) => one.class === name);
    return c && c.lookups > 0 ? { text: share(c.hits, c.lookups), part: c.hits / c.lookups } : NONE;
  };
  const stateCell = (s) => { if (s.stale) return 'not known now'; const [word, kind] = stateOf(s); return { text: word + since(s), kind }; };
  const nameCell = (s) => shortName(s.target);
  const tables = {
    servers: new Table('servers-now', 'Servers: what they do now', [
      col('Server', nameCell), col('State', stateCell, 'text'),
      col('Requests/s', (s) => count(s.requests && s.requests.per_s)),
      col('Read', (s) => speed(s.role === 'OST' ? s.read_bytes_per_s : null)),
      col('Written', (s) => speed(s.role === 'OST' ? s.write_bytes_per_s : null)),
      col('Half within', (s) => micros(s.requests && s.requests.p50_us)),
      col('99 % within', (s) => micros(s.requests && s.requests.p99_us)),
      col('Space used', (s) => (used(s.space) === null ? NONE
        : { text: share(used(s.space), 1) + ' of ' + bytes(s.space.total_bytes), part: used(s.space) })),
      col('Clients', (s) => count(s.clients)), col('Address', (s) => s.nid, 'text'),
      col('Session', (s) => (s.link.security || NONE) + ', ' + count(s.link.in_flight) + ' in flight, ' + count(s.link.resent) + ' resent', 'text'),
    ]),
    kinds: new Table('kinds', 'Requests by kind, the most frequent ones', [
      col('Server and kind', (k) => k.server + ' ' + k.kind), col('Requests/s', (k) => count(k.per_s)),
      col('Half within', (k) => micros(k.p50_us)), col('99 % within', (k) => micros(k.p99_us)),
    ]),
    schedulers: new Table('schedulers', 'Queue of each OST, and what its policy counted', [
      col('OST', nameCell), col('Policy', (s) => (s.queue && s.queue.policy) || NONE, 'text'),
      col('Queued', (s) => (s.queue ? { text: count(s.queue.queued), part: s.queue.queued / Math.max(1, s.scheduler.queued_max || 0) } : NONE)),
      col('At the store', (s) => count(s.queue && s.queue.in_service)),
      col('99 % queue for', (s) => micros(s.kinds && s.kinds.nrs_wait && s.kinds.nrs_wait.p99_us)),
      col('To the store/s', (s) => count(s.speeds.dispatched)),
      ...[['Most queued', 'queued_max'], ['Turns', 'turns'], ['Urgent', 'urgent'], ['Late', 'late'], ['Deadlines', 'mandatory_fired'],
        ['Held back', 'throttled'], ['Refused', 'refused'], ['Switched', 'switched']]
        .map(([title, name]) => col(title, (s) => count(s.scheduler && s.scheduler[name]))),
    ]),
    caches: new Table('caches', 'Caches: pages found, since counting began', [
      col('Where', (c) => c.where), col('Policy', (c) => c.cache.policy || NONE, 'text'),
      col('In memory', (c) => ({ text: bytes(c.cache.resident_bytes) + ' of ' + bytes(c.cache.capacity_bytes),
        part: c.cache.capacity_bytes > 0 ? c.cache.resident_bytes / c.cache.capacity_bytes : 0 })),
      col('Fine', (c) => hits(c.cache, 'fine')), col('Coarse', (c) => hits(c.cache, 'coarse')),
      col('Ahead of reads', (c) => hits(c.cache, 'readahead')),
      col('In the last second', (c) => share(c.now, 1)),
    ]),
    readahead: new Table('caches', 'Readahead of this mount', [
      col('Counter', (r) => r.name), col('Value', (r) => r.value), col('Per second', (r) => r.speed),
    ]),
    locks: new Table('locks', 'Locks by server', [
      col('Server', nameCell), col('Held or waited for', (s) => count(s.locks.count)),
      col('Granted at once', (s) => count(s.locks.granted)), col('Had to wait', (s) => count(s.locks.waited)),
      col('Waits/s', (s) => count(s.speeds.waited)), col('Callbacks', (s) => count(s.locks.callbacks)),
      col('Evictions', (s) => count(s.locks.evictions)),
    ]),
    recovery: new Table('locks', 'Recovery after restarts', [
      col('Server', nameCell), col('State', (s) => (s.stale || !s.answers ? stateCell(s) : s.recovery ? { text: 'waits for clients of before', kind: 'warn' } : 'done'), 'text'),
      col('At most', (s) => (s.recovery ? s.recovery.left_s + ' s' : NONE)),
      col('Clients', (s) => (s.recovery ? count(s.recovery.clients) : NONE)),
      col('Who', (s) => (s.waiting_for.length ? { text: s.waiting_for.slice(0, 8).join(', '), kind: 'wide' } : NONE), 'text'),
    ]),
    jobs: new Table('uses', 'Jobs: what they do now, and did since counting began', [col('Job', (u) => u.name), ...useColumns()]),
    clients: new Table('uses', 'Clients: what they do now, and did since counting began', [
      col('Client', (u) => u.name + (u.own ? ' (this mount)' : '')), col('From', (u) => u.known || NONE, 'text'), ...useColumns(),
    ]),
  };
  function useColumns() {
    return [
      col('Requests/s', (u) => count(u.requests_per_s)), col('Read', (u) => speed(u.read_bytes_per_s)),
      col('Written', (u) => speed(u.write_bytes_per_s)), col('Requests', (u) => count(u.requests)),
      col('Read in all', (u) => bytes(u.read_bytes)), col('Written in all', (u) => bytes(u.write_bytes)),
    ];
  }

  const KINDS_SHOWN_MAX = 24;
  // What looks themselves ask, and the part of other kinds that is waiting, are no work.
  const NO_WORK = ['params', 'nrs_wait'];
  function kindsOf(servers) {
    const all = servers.flatMap((s) => Object.entries(s.kinds || {}).filter(([kind]) => !NO_WORK.includes(kind))
      .map(([kind, times]) => ({ server: shortName(s.target), kind, ...times })));
    const most = all.sort((a, b) => b.per_s - a.per_s).slice(0, KINDS_SHOWN_MAX);
    // In an order in which rows stay where they are.
    return most.map((k) => [k.server + ' ' + k.kind, k]).sort(([a], [b]) => (a < b ? -1 : 1));
  }

  // ---- charts of the last two minutes
  const POINTS = 120;
  class Chart {
    constructor(title, format, series) {
      this.title = title;
      this.format = format;
      this.series = series;
      this.points = [];
      this.now = make('b');
      this.svg = draw('svg', { viewBox: '0 0 ' + (POINTS - 1) + ' 60', preserveAspectRatio: 'none', role: 'img' });
      this.paths = series.map((_, i) => draw('path', { class: i === 1 ? 'second' : null }));
      this.svg.append(...this.paths);
      $('charts').append(make('figure', {}, make('figcaption', {}, title + ': ', this.now), this.svg));
    }
    take(values) {
      this.points.push(values);
      if (this.points.length > POINTS) this.points.shift();
    }
    show() {
      const last = this.points[this.points.length - 1] || [];
      const most = Math.max(0, ...this.points.flat().filter(known));
      const words = this.series.map((name, i) => (name ? name + ' ' : '') + this.format(last[i])).join(', ');
      say(this.now, words);
      this.svg.setAttribute('aria-label', this.title + ' in the last two minutes: now ' + words + ', at most ' + this.format(most));
      this.paths.forEach((path, i) => {
        let drawn = '';
        let pen = 'M';
        this.points.forEach((values, at) => {
          if (!known(values[i])) { pen = 'M'; return; }
          const x = POINTS - this.points.length + at;
          drawn += pen + x + ' ' + (57 - (54 * values[i]) / Math.max(most, 1e-9)).toFixed(1);
          pen = 'L';
        });
        path.setAttribute('d', drawn);
      });
    }
  }
  const charts = [
    new Chart('Bytes', speed, ['read', 'written']),
    new Chart('Requests', (n) => count(n) + '/s', ['']),
    new Chart('In schedulers', count, ['queued', 'at the stores']),
  ];
  function takePoint([read, written, requests, queued, serving]) {
    charts[0].take([read, written]);
    charts[1].take([requests]);
    charts[2].take([queued, serving]);
  }

  // ---- the cluster as a picture
  const OSTS_DRAWN_MAX = 96;
  const CLIENTS_DRAWN_MAX = 6;
  function boxesOf(doc) {
    const clients = doc.clients ? doc.clients.shown : [];
    const own = clients.find((c) => c.own) || { name: (doc.cluster && doc.cluster.client) || '' };
    const box = (c, title) => ({
      name: title, kind: doc.away && c === own ? 'bad' : 'good', word: doc.away && c === own ? 'does not answer' : 'client',
      lines: [c.name.slice(-10), 'read ' + speed(c.read_bytes_per_s), 'written ' + speed(c.write_bytes_per_s)], link: doc.away && c === own ? 'bad' : 'good',
    });
    // Servers are clients of each other, too, and some have gone; the metadata server knows those that are there.
    const addresses = clients.some((c) => c.known);
    const there = clients.filter((c) => c !== own && (!addresses || c.known));
    const others = there.slice(0, CLIENTS_DRAWN_MAX - 1);
    const top = [box(own, 'This mount'), ...others.map((c) => ({ ...box(c, 'Client'), link: '' }))];
    const more = there.length - others.length + (doc.clients ? doc.clients.more : 0);
    if (more > 0) top.push({ name: several(more, 'more client', 'more clients'), kind: '', word: '', lines: ['in the table below'], link: '' });
    const server = (s) => {
      const [word, kind] = doc.away ? ['not known now', ''] : stateOf(s);
      const lines = s.answers && !doc.away ? [
        s.role === 'OST' ? 'read ' + speed(s.read_bytes_per_s) : count(s.requests && s.requests.per_s) + ' requests/s',
        s.role === 'OST' ? 'written ' + speed(s.write_bytes_per_s) : several(s.clients || 0, 'client', 'clients'),
        s.queue ? s.queue.queued + ' queued, ' + (s.queue.policy || '') : s.locks && known(s.locks.count) ? count(s.locks.count) + ' locks' : '',
      ] : [doc.away ? '' : since(s).trim()];
      return { name: shortName(s.target), kind, word, lines, link: kind, used: used(s.space) };
    };
    const ill = (s) => stateOf(s)[1] !== 'good';
    const osts = doc.servers.filter((s) => s.role === 'OST');
    const drawn = new Set([...osts.filter(ill), ...osts.filter((s) => !ill(s))].slice(0, OSTS_DRAWN_MAX));
    const bottom = osts.filter((s) => drawn.has(s)).map(server);
    if (osts.length > drawn.size) bottom.push({ name: (osts.length - drawn.size) + ' more OSTs', kind: '', word: '', lines: ['in the table below'], link: '' });
    return [top, doc.servers.filter((s) => s.role === 'MDT').map(server), bottom];
  }
  function picture(doc) {
    const width = Math.max(200, $('picture').clientWidth);
    const [left, gap, high, between, least] = [16, 12, 104, 22, 132];
    const columns = Math.max(1, Math.floor((width - left - 1 + gap) / (least + gap)));
    const wide = Math.min(230, (width - left - 1 - (columns - 1) * gap) / columns);
    const svg = draw('svg', { role: 'img', width });
    const servers = doc.servers;
    const ill = servers.filter((s) => stateOf(s)[1] !== 'good');
    const words = several(servers.filter((s) => s.role === 'MDT').length, 'metadata server', 'metadata servers') + ' and ' +
      several(servers.filter((s) => s.role === 'OST').length, 'OST', 'OSTs') + '; ' +
      (doc.away ? 'this mount does not answer' : ill.length ? ill.map((s) => shortName(s.target) + ' ' + stateOf(s)[0]).join(', ') : 'all serve');
    svg.setAttribute('aria-label', 'The cluster: ' + words);
    let y = 8;
    const rails = [];
    for (const group of boxesOf(doc)) {
      for (let at = 0; at < group.length; at += columns) {
        const row = group.slice(at, at + columns);
        const middle = (i) => left + i * (wide + gap) + wide / 2;
        rails.push([y, middle(row.length - 1)]);
        row.forEach((box, i) => svg.append(...boxed(box, left + i * (wide + gap), y + between - 8, wide, high, middle(i), y)));
        y += high + between;
      }
    }
    const [first, last] = [rails[0], rails[rails.length - 1]];
    svg.prepend(draw('path', { d: 'M4 ' + first[0] + 'V' + last[0] + rails.map(([at, end]) => 'M4 ' + at + 'H' + end).join('') }));
    svg.setAttribute('height', y - 4);
    $('picture').replaceChildren(svg);
  }
  function boxed(box, x, y, wide, high, middle, rail) {
    const letters = Math.max(8, Math.floor((wide - 16) / 6.6));
    const cut = (text) => (text.length > letters ? text.slice(0, letters - 1) + '…' : text);
    const parts = [
      draw('path', { class: box.link || null, d: 'M' + middle + ' ' + rail + 'V' + y }),
      draw('rect', { class: 'box ' + box.kind, x, y, width: wide, height: high - 8, rx: 6 }),
      draw('text', { class: 'name', x: x + 8, y: y + 18 }, cut(box.name)),
      draw('text', { class: box.kind, x: x + 8, y: y + 34 }, cut(box.word)),
      ...box.lines.map((line, i) => draw('text', { class: 'faint', x: x + 8, y: y + 50 + 14 * i }, cut(line))),
    ];
    if (known(box.used)) {
      parts.push(draw('rect', { class: 'track', x: x + 8, y: y + high - 19, width: wide - 16, height: 5, rx: 2 }));
      parts.push(draw('rect', { class: box.used > 0.95 ? 'fill bad' : 'fill', x: x + 8, y: y + high - 19, width: (wide - 16) * box.used, height: 5, rx: 2 }));
    }
    return parts;
  }

  // ---- speeds of counters that come as sums
  let before = null;
  function addSpeeds(doc) {
    const grown = (now, then, seconds) => (known(now) && known(then) && now >= then ? (now - then) / seconds : null);
    const seconds = before ? doc.as_of - before.as_of : 0;
    for (const s of doc.servers) {
      const then = seconds > 0 && before.servers.find((one) => one.target === s.target);
      const of = (part, name) => (then && s[part] && then[part] ? grown(s[part][name], then[part][name], seconds) : null);
      s.stale = Boolean(doc.away);
      s.speeds = { dispatched: of('scheduler', 'dispatched'), waited: of('locks', 'waited') };
    }
    const counters = doc.mount ? doc.mount.readahead.counters : {};
    const then = seconds > 0 && before.mount ? before.mount.readahead.counters : {};
    doc.ahead = Object.entries(counters).map(([name, value]) => ({ name, value, speed: grown(value, then[name], seconds || 1) }));
    if (!doc.away) before = doc;
  }

  // ---- showing a document
  function show(doc) {
    const cluster = doc.cluster || {};
    say($('fsname'), cluster.fsname || '');
    say($('where'), [cluster.mount_point && 'seen from ' + cluster.mount_point, cluster.client && 'client ' + cluster.client,
      cluster.transport, cluster.cluster && 'cluster ' + cluster.cluster].filter(Boolean).join(' · '));
    say($('time'), doc.away && known(doc.as_of) ? 'what was known at ' + clock(doc.as_of) : clock(doc.time));
    document.body.classList.toggle('stale', Boolean(doc.away));
    showTroubles(doc, cluster);
    picture(doc);
    charts.forEach((chart) => chart.show());
    const servers = doc.servers.map((s) => [s.target, s]);
    tables.servers.show(servers, 'no server is known');
    tables.kinds.show(kindsOf(doc.away ? [] : doc.servers), 'nothing was asked in the last second');
    tables.schedulers.show(servers.filter(([, s]) => s.scheduler), 'no OST answers');
    const caches = servers.filter(([, s]) => s.cache).map(([key, s]) => [key, { where: shortName(key), cache: s.cache, now: s.cache_hit_ratio }]);
    if (doc.mount) caches.push(['mount', { where: 'This mount', cache: doc.mount.cache, now: null }]);
    tables.caches.show(caches, 'nothing is known');
    tables.readahead.show(doc.ahead.map((r) => {
      const inBytes = r.name.endsWith('_bytes');
      return [r.name, { name: r.name.replace(/_bytes$/, '').replace(/_/g, ' '), value: (inBytes ? bytes : count)(r.value),
        speed: r.name === 'held_bytes' ? NONE : inBytes ? speed(r.speed) : count(r.speed) }];
    }), 'nothing is known');
    tables.locks.show(servers.filter(([, s]) => s.answers), 'no server answers');
    tables.recovery.show(servers, 'no server is known');
    const uses = (all) => (all ? all.shown.map((u) => [u.name, u]) : []);
    tables.jobs.show(uses(doc.jobs), 'no job did anything');
    tables.clients.show(uses(doc.clients), 'no client did anything');
    showPolicies(doc);
  }
  // Commands stand in quotes.
  const sentence = (text) => text.split(/('[^']*')/).map((part) => (part.startsWith("'") ? make('code', {}, part) : part));
  function showTroubles(doc, cluster) {
    const all = [...doc.troubles.map((t) => t.what + ': ' + t.do), ...doc.notes];
    const list = $('troubles-list');
    while (list.children.length > all.length) list.lastChild.remove();
    while (list.children.length < all.length) list.append(make('li'));
    // A sentence that is as it was stays, so that its command can be selected and copied.
    all.forEach((text, i) => {
      const li = list.children[i];
      if (li.textContent !== text) li.replaceChildren(...sentence(text));
    });
    // Times in notes change each second; their number does not.
    say($('troubles-said'), all.length ? several(all.length, 'thing is', 'things are') + ' not as they should be' : 'none that is known');
    $('troubles-said').className = all.length ? 'bad' : 'good';
    $('troubles').classList.toggle('ill', all.length > 0);
    document.title = (all.length ? '(' + all.length + ') ' : '') + 'Stria ' + (cluster.fsname || '');
  }

  // ---- policies
  let switches = [];
  function makeSwitches(facts) {
    if (facts.read_only) {
      say($('policies-said'), 'This page only shows: it was started with --read-only.');
    }
    switches = facts.switches.map((s) => {
      const id = 'switch-' + s.id;
      const select = make('select', { id }, ...s.choices.map((c) => make('option', { value: c.name }, c.name)));
      const summary = make('p', { class: 'quiet', id: id + '-summary' });
      select.setAttribute('aria-describedby', summary.id);
      const explain = () => say(summary, s.choices.find((c) => c.name === select.value).summary);
      select.addEventListener('change', explain);
      explain();
      const now = make('b');
      const button = make('button', { type: 'button' }, 'Switch …');
      button.addEventListener('click', () => ask(s, select.value, now.textContent));
      const card = make('div', { class: 'switch' }, make('h3', {}, s.label), make('p', {}, 'now ', now),
        make('p', { class: 'quiet' }, 'concerns ' + s.scope));
      if (!facts.read_only) {
        card.append(make('label', { for: id }, 'New policy'), make('div', { class: 'bar' }, select, button), summary);
      }
      return { ...s, now, card, select, explain, touched: false };
    });
    $('switches').replaceChildren(...switches.map((s) => s.card));
  }
  function showPolicies(doc) {
    for (const s of switches) {
      const values = (doc.policies && doc.policies[s.id]) || [];
      say(s.now, values.length ? values.join(' and ') : 'not known');
      // The choice begins with what is so.
      if (!s.touched && values.length && s.choices.some((c) => c.name === values[0])) {
        s.select.value = values[0];
        s.explain();
        s.touched = true;
      }
    }
  }
  let wish = null;
  function ask(s, value, now) {
    wish = { switch: s.id, value };
    say($('confirm-title'), s.label + ': ' + value + '?');
    say($('confirm-text'), 'This sets ' + s.pattern + ' to ' + value + ' (now ' + now + ') and concerns ' + s.scope + '.');
    $('confirm').showModal();
    $('confirm-no').focus();
  }
  $('confirm-no').addEventListener('click', () => $('confirm').close());
  $('confirm-yes').addEventListener('click', async () => {
    $('confirm').close();
    const result = $('policies-result');
    result.className = '';
    say(result, 'asked for ' + wish.value + ' …');
    try {
      const answer = await fetch('set', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(wish) });
      const told = await answer.json();
      result.className = told.error ? 'bad' : 'good';
      say(result, told.error ? 'refused: ' + told.error : 'set to ' + told.value + ': ' + told.set.join(', '));
    } catch (e) {
      result.className = 'bad';
      say(result, 'no answer: ' + e.message);
    }
  });

  // ---- events
  let latest = null;
  let heard = 0;
  let events = null;
  let paused = false;
  let lost = '';
  function state() {
    const silent = events && events.readyState === EventSource.OPEN && heard > 0 && Date.now() - heard > 5000;
    const [text, kind] = lost ? [lost, 'bad'] : silent ? ['nothing was heard since ' + clock(heard / 1000), 'bad']
      : !latest ? ['connecting', ''] : latest.away ? ['this mount does not answer since ' + clock(latest.away.since), 'bad']
        : paused ? ['stands still', 'warn'] : ['live', 'good'];
    say($('state'), text);
    $('state').className = kind;
  }
  function connect() {
    events = new EventSource('events');
    events.addEventListener('facts', (e) => {
      const facts = JSON.parse(e.data);
      say($('version'), facts.version);
      if (switches.length === 0) makeSwitches(facts);
      charts.forEach((chart) => { chart.points = []; });
      facts.past.forEach(takePoint);
    });
    events.onmessage = (e) => {
      const doc = JSON.parse(e.data);
      [heard, lost] = [Date.now(), ''];
      for (const c of doc.clients ? doc.clients.shown : []) c.own = c.name === doc.cluster.client;
      addSpeeds(doc);
      takePoint(doc.sums);
      latest = doc;
      if (!paused) show(doc);
      state();
    };
    events.onerror = () => {
      lost = 'the connection is lost; trying again' + (heard ? ', heard last at ' + clock(heard / 1000) : '');
      state();
      // A browser tries again by itself, but not after a refusal.
      if (events.readyState === EventSource.CLOSED) refused();
    };
  }
  async function refused() {
    const ended = new AbortController();
    try {
      const answer = await fetch('events', { signal: ended.signal });
      if (!answer.ok) {
        lost = (await answer.text()).trim();
        state();
      }
    } catch (e) {
      // The server is gone; what is shown says so.
    }
    ended.abort();
    setTimeout(connect, 5000);
  }
  $('pause').addEventListener('click', () => {
    paused = !paused;
    $('pause').setAttribute('aria-pressed', String(paused));
    if (!paused && latest) show(latest);
    state();
  });
  let resized = 0;
  window.addEventListener('resize', () => {
    cancelAnimationFrame(resized);
    resized = requestAnimationFrame(() => { if (latest) picture(latest); });
  });
  setInterval(state, 1000);
  connect();
})();
