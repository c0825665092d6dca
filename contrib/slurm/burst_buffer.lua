-- #STRIA lines as a burst buffer of Slurm: checked when a job is submitted, staged in before it gets its nodes, released when it is over, however it ended.
-- In slurm.conf: BurstBufferType=burst_buffer/lua. In burst_buffer.conf: Directive=STRIA. The file system is mounted on slurmctld's host.
local tool = os.getenv("STRIA_SLURM") or "/usr/local/sbin/stria-slurm"

local function quoted(text)
	return "'" .. tostring(text):gsub("'", "'\\''") .. "'"
end

local function run(...)
	local words = { quoted(tool) }
	for _, word in ipairs({ ... }) do
		words[#words + 1] = quoted(word)
	end
	-- Lua 5.1 does not tell how a command ended.
	local pipe = io.popen(table.concat(words, " ") .. " 2>&1; echo exit $?", "r")
	local said, code = pipe:read("*a"):match("^(.-)exit (%d+)%s*$")
	pipe:close()
	if said == nil then
		return slurm.ERROR, "stria-slurm did not run"
	end
	if said ~= "" then
		slurm.log_info("stria: %s", said)
	end
	return code == "0" and slurm.SUCCESS or slurm.ERROR, said
end

function slurm_bb_job_process(job_script, uid, gid, job_info)
	local code, said = run("check", job_script)
	return code, said
end

function slurm_bb_pools()
	-- Places are given by the servers, not counted by Slurm.
	return slurm.SUCCESS, '{"pools": [{"id": "stria", "quantity": 1099511627776, "granularity": 1}]}'
end

function slurm_bb_job_teardown(job_id, job_script, hurry, uid, gid)
	return run("end", job_id)
end

function slurm_bb_setup(job_id, uid, gid, pool, bb_size, job_script, job_info)
	return slurm.SUCCESS
end

function slurm_bb_data_in(job_id, job_script, uid, gid, job_info)
	-- Slurm 22.05 does not say whose job it is.
	return run("begin", job_id, uid or "-", job_script)
end

function slurm_bb_real_size(job_id, uid, gid, job_info)
	return slurm.SUCCESS, 0
end

function slurm_bb_paths(job_id, job_script, path_file, uid, gid, job_info)
	return slurm.SUCCESS
end

function slurm_bb_pre_run(job_id, job_script, uid, gid, job_info)
	return slurm.SUCCESS
end

function slurm_bb_post_run(job_id, job_script, uid, gid, job_info)
	return slurm.SUCCESS
end

function slurm_bb_data_out(job_id, job_script, uid, gid, job_info)
	return slurm.SUCCESS
end

function slurm_bb_get_status(uid, gid, ...)
	return run("show")
end
